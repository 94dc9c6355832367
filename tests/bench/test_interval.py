"""Confidence intervals: do 95% of them contain the true value?"""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.measure.interval import (
    MIN_SAMPLES,
    Interval,
    bootstrap,
    factor_interval,
    median_interval,
    ratio_interval,
    share_interval,
    student_t,
)

DATA_SETS = 1000


def covered(draw, truth: float) -> float:
    """Share of the intervals of a ratio, over data sets made by ``draw(random)``, that contain ``truth``."""
    random = np.random.default_rng(1)
    intervals = [bootstrap(draw(random), operator.truediv, resamples=1000, seed=i) for i in range(DATA_SETS)]
    return sum(interval.low <= truth <= interval.high for interval in intervals) / DATA_SETS


@pytest.mark.parametrize("n", [6, 20])
def test_intervals_of_a_mean_cover_it(n):
    """If each of 1,000 intervals covers with 95%, between 93% and 97% of them do with probability 99.6%.
    Plain percentiles cover 87% with 6 samples: they would pass with probability below 1e-6."""
    share = covered(lambda random: (random.normal(3, 2, n), np.ones(n)), truth=3)
    assert 0.93 <= share <= 0.97


def test_intervals_of_a_paired_ratio_cover_it():
    """What two settings share (here: how hard a prompt is) must not widen the interval of their ratio, and noise must
    not be left out. Bounds as above; a ratio is a little skewed, hence one more percent below."""

    def draw(random):
        prompts = random.uniform(50, 150, 12)
        return 2 * prompts * random.normal(1, 0.05, 12), prompts * random.normal(1, 0.05, 12)

    assert 0.92 <= covered(draw, truth=2) <= 0.97
    paired = ratio_interval(*draw(np.random.default_rng(0)))
    assert paired.high - paired.low < 0.3  # unpaired, prompts alone would spread it over more than 1


def test_an_interval_is_reproducible():
    samples = [1, 2, 4, 3, 2, 5], [1, 1, 2, 2, 1, 3]
    assert ratio_interval(*samples) == ratio_interval(*samples)
    assert ratio_interval(*samples).value == 17 / 10


def test_equal_samples_give_an_interval_of_no_width():
    assert ratio_interval([0.0] * MIN_SAMPLES) == Interval(0.0, 0.0, 0.0)


@pytest.mark.parametrize("n", range(1, MIN_SAMPLES))
def test_too_few_samples_have_no_interval(n):
    """With 2 samples a "95%" interval would contain the true value half of the time."""
    assert ratio_interval([1.0, 2.0, 3.0, 4.0, 5.0][:n]) == Interval((n + 1) / 2, None, None)


@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 9)), min_size=MIN_SAMPLES, max_size=9))
def test_negating_a_difference_mirrors_its_interval(prompts):
    more, tokens = zip(*prompts, strict=True)
    one = bootstrap([more, tokens], operator.truediv, resamples=500)
    other = bootstrap([[-each for each in more], tokens], operator.truediv, resamples=500)
    assert (other.value, other.low, other.high) == pytest.approx((-one.value, -one.high, -one.low))


def test_a_function_of_several_sums_has_an_interval():
    """A ratio of ratios, as for the acceptance of two drafts."""
    columns = [1.0, 2, 3, 4, 5, 6], [2.0, 4, 6, 8, 10, 12], [1.0] * 6, [1.0] * 6
    sure = bootstrap(columns, lambda a, b, c, d: a / b / (c / d))
    assert (sure.value, sure.low, sure.high) == pytest.approx((0.5, 0.5, 0.5))


def test_there_is_no_interval_if_a_resample_may_divide_by_zero():
    assert ratio_interval([1.0] * 6, [0.0, 0, 0, 0, 0, 0.1]) == Interval(pytest.approx(60), None, None)
    rare = ratio_interval([0.0] + [1.0] * 11, [0.0] + [2.0] * 11)  # not one resample in a billion has only the first
    assert (rare.value, rare.low, rare.high) == (0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="divided by adds up to 0"):
        ratio_interval([1.0] * 6, [0.0] * 6)


def test_a_resample_without_a_figure_might_be_anywhere():
    """Of one in a hundred nothing is known: both ends are further out than if those were known to be at one of them."""
    samples = [np.random.default_rng(0).normal(0, 1, 12), np.ones(12)]
    plain = bootstrap(samples, operator.truediv)
    for lowest, highest in ((-0.6, np.inf), (-np.inf, 0.6)):

        def some(total, n, lowest=lowest, highest=highest):
            mean = total / n
            return np.where((mean > lowest) & (mean < highest), mean, np.nan)

        found = bootstrap(samples, some)
        assert found.low <= plain.low
        assert found.high >= plain.high
        assert (found.low, found.high) != (plain.low, plain.high)


@pytest.mark.parametrize("samples", [([],), ([1.0, 2.0], [1.0])])
def test_samples_must_exist_and_pair_up(samples):
    with pytest.raises(ValueError, match="one of each a prompt"):
        ratio_interval(*samples)


def test_map_transforms_the_value_and_both_ends():
    assert Interval(0.0, -1.0, 1.0).map(math.exp) == Interval(1.0, math.exp(-1), math.e)
    assert Interval(0.0, None, None).map(math.exp) == Interval(1.0, None, None)


def test_intervals_of_shares_are_wilson_intervals():
    """19 of 20: 0.764 to 0.991 (Newcombe, 1998, gives Wilson's interval in closed form)."""
    share = share_interval(19, 20)
    assert (share.value, round(share.low, 3), round(share.high, 3)) == (0.95, 0.764, 0.991)
    other = share_interval(1, 20)
    assert (other.value, round(other.low, 3), round(other.high, 3)) == (0.05, 0.009, 0.236)
    assert share_interval(20, 20).low < 0.85
    assert share_interval(0, 20).high > 0.15


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.706), (2, 4.303), (5, 2.571), (19, 2.093), (200, 1.972)])
def test_student_t_agrees_with_the_tables(freedom, t):
    assert student_t(freedom) == pytest.approx(t, abs=6e-4)


@pytest.mark.parametrize(
    ("n", "left_out"), [(2, 0), (5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (15, 3), (25, 7), (2000, 955)]
)
def test_the_interval_of_a_median_leaves_out_what_the_binomial_allows(n, left_out):
    """As in textbook tables of the sign test at 5%."""
    found = median_interval(list(range(n))[::-1])
    assert (found.low, found.high) == (left_out, n - 1 - left_out)
    assert found.value == (n - 1) / 2


def test_the_interval_of_a_median_covers_it():
    random = np.random.default_rng(1)
    medians = [median_interval(random.exponential(1, 9)) for _ in range(DATA_SETS)]
    share = sum(one.low <= math.log(2) <= one.high for one in medians) / DATA_SETS
    assert 0.94 <= share <= 0.98  # 96.1%, within three standard deviations


def test_one_value_has_no_interval_and_no_values_have_no_median():
    assert median_interval([3.0]) == Interval(3.0, None, None)
    with pytest.raises(ValueError, match="no values"):
        median_interval([])


@pytest.mark.parametrize("n", [2, 3, 9])
def test_intervals_of_factors_from_few_pairs_cover_the_true_one(n):
    """As above: between 93% and 97% of 1,000 with probability 99.6%. The quartiles of three values lie on one side of
    the true one in one case of four."""
    random = np.random.default_rng(2)
    made = [1.5 * np.exp(random.normal(0, 0.2, n)) for _ in range(DATA_SETS)]
    intervals = [factor_interval(factors) for factors in made]
    assert 0.93 <= sum(interval.low <= 1.5 <= interval.high for interval in intervals) / DATA_SETS <= 0.97
    turned = factor_interval([1 / factor for factor in made[0]])
    assert (turned.low, turned.high) == pytest.approx((1 / intervals[0].high, 1 / intervals[0].low))
    by_hand = 0.1 + 12.7062 * math.sqrt(0.02) / math.sqrt(2)  # t with one degree of freedom
    assert factor_interval([1.0, math.exp(0.2)]).high == pytest.approx(math.exp(by_hand), rel=1e-4)
    assert factor_interval([1.5]) == Interval(1.5, None, None)
    with pytest.raises(ValueError, match="no factors"):
        factor_interval([])
