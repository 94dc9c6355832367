"""Confidence intervals: do 95% of them hold the truth?"""

from __future__ import annotations

import math

import numpy as np
import pytest

from lab.bench.interval import Interval, median_interval, ratio_interval, share_interval, student_t

DATA_SETS = 1000


def covered(draw, truth: float) -> float:
    """Share of intervals, over data sets that ``draw(random)`` makes, that hold ``truth``."""
    random = np.random.default_rng(1)
    intervals = [ratio_interval(*draw(random), resamples=1000, seed=i) for i in range(DATA_SETS)]
    return sum(interval.low <= truth <= interval.high for interval in intervals) / DATA_SETS


@pytest.mark.parametrize("n", [6, 20])
def test_intervals_of_a_mean_cover_it(n):
    """Of 1,000 intervals that each cover with 95%, between 93% and 97% do with probability 99.6%.
    Plain percentiles cover 87% with 6 samples: they would pass with probability below 1e-6."""
    share = covered(lambda random: (random.normal(3, 2, n),), truth=3)
    assert 0.93 <= share <= 0.97


def test_intervals_of_a_paired_ratio_cover_it():
    """What two settings share (here: how hard a prompt is) must not widen the interval of their ratio, nor its
    noise be left out. The bounds as above; a ratio is a little skewed, hence one more percent below."""

    def draw(random):
        prompts = random.uniform(50, 150, 12)
        return 2 * prompts * random.normal(1, 0.05, 12), prompts * random.normal(1, 0.05, 12)

    assert 0.92 <= covered(draw, truth=2) <= 0.97
    paired = ratio_interval(*draw(np.random.default_rng(0)))
    assert paired.high - paired.low < 0.3  # unpaired, prompts alone would spread it over more than 1


def test_an_interval_can_be_made_again():
    assert ratio_interval([1, 2, 4], [1, 1, 2]) == ratio_interval([1, 2, 4], [1, 1, 2])
    assert ratio_interval([1, 2, 4], [1, 1, 2]).value == 7 / 4


def test_equal_samples_have_no_width_and_one_has_no_interval():
    assert ratio_interval([0.0] * 5) == Interval(0.0, 0.0, 0.0)
    assert ratio_interval([3.0]) == Interval(3.0, None, None)


@pytest.mark.parametrize("samples", [([],), ([1.0, 2.0], [1.0])])
def test_samples_must_be_there_and_pair_up(samples):
    with pytest.raises(ValueError, match="one of each a prompt"):
        ratio_interval(*samples)


def test_another_scale_moves_all_three():
    assert Interval(0.0, -1.0, 1.0).map(math.exp) == Interval(1.0, math.exp(-1), math.e)
    assert Interval(0.0, None, None).map(math.exp) == Interval(1.0, None, None)


def test_shares_are_wilsons():
    """19 of 20: 0.764 to 0.991 (Newcombe, 1998, gives Wilson's interval in closed form)."""
    share = share_interval(19, 20)
    assert (share.value, round(share.low, 3), round(share.high, 3)) == (0.95, 0.764, 0.991)
    assert share_interval(20, 20).low < 0.85
    assert share_interval(0, 20).high > 0.15


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.706), (2, 4.303), (5, 2.571), (19, 2.093), (200, 1.972)])
def test_student_t_is_the_tables(freedom, t):
    assert student_t(0.95, freedom) == pytest.approx(t, abs=6e-4)


@pytest.mark.parametrize(("n", "left_out"), [(2, 0), (5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (15, 3), (25, 7)])
def test_the_interval_of_a_median_leaves_out_what_the_binomial_lets_it(n, left_out):
    """The table that textbooks have for a sign test at 5%."""
    found = median_interval(list(range(n))[::-1])
    assert (found.low, found.high) == (left_out, n - 1 - left_out)
    assert found.value == (n - 1) / 2


def test_the_interval_of_a_median_covers_it():
    random = np.random.default_rng(1)
    medians = [median_interval(random.exponential(1, 9)) for _ in range(DATA_SETS)]
    share = sum(one.low <= math.log(2) <= one.high for one in medians) / DATA_SETS
    assert 0.94 <= share <= 0.98  # 96.1%, within three standard deviations


def test_one_value_has_no_interval_and_none_no_median():
    assert median_interval([3.0]) == Interval(3.0, None, None)
    with pytest.raises(ValueError, match="no values"):
        median_interval([])
