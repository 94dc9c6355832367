"""Intervals contain the true value as often as they say, fits find the true exponent, and tests have power."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from lab.measure.interval import (
    MIN_SAMPLES,
    Interval,
    bootstrap,
    factor_interval,
    g_test,
    median_interval,
    ratio_interval,
    share_interval,
    student_t,
)
from lab.measure.scaling_fit import EXPONENTS, StepTimes, fit_power, worth

DATA_SETS = 400


def coverage(interval, draw, truth: float, seed: int = 1) -> float:
    """Share of intervals, each of a data set made by ``draw(random)``, that contain ``truth``."""
    random = np.random.default_rng(seed)
    intervals = [interval(draw(random)) for _ in range(DATA_SETS)]
    return sum(one.low <= truth <= one.high for one in intervals) / DATA_SETS


def ratio(columns) -> Interval:
    return bootstrap(columns, operator.truediv, resamples=500)


def paired(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two settings share how hard a prompt is: that must not widen the interval of their ratio."""
    prompts = random.uniform(50, 150, 12)
    return 2 * prompts * random.normal(1, 0.05, 12), prompts * random.normal(1, 0.05, 12)


@pytest.mark.parametrize(
    ("interval", "draw", "truth", "low", "high"),
    [
        # Plain percentiles cover 87% with 6 samples: they would pass with probability 0.2%.
        (ratio, lambda random: (random.normal(3, 2, 6), np.ones(6)), 3, 0.92, 0.98),
        (ratio, lambda random: (random.normal(3, 2, 20), np.ones(20)), 3, 0.92, 0.98),
        (ratio, paired, 2, 0.91, 0.98),
        (median_interval, lambda random: random.exponential(1, 9), math.log(2), 0.93, 0.99),  # 96.1%
        # The quartiles of three values lie on one side of the true one in one case of four.
        *(
            (factor_interval, lambda random, n=n: 1.5 * np.exp(random.normal(0, 0.2, n)), 1.5, 0.92, 0.98)
            for n in (2, 9)
        ),
    ],
    ids=["mean of 6", "mean of 20", "paired ratio", "median", "factor of 2", "factor of 9"],
)
def test_intervals_cover_the_truth_as_often_as_they_say(interval, draw, truth, low, high) -> None:
    """If each of 400 covers with 95%, between 92% and 98% of them do with probability 99.4%."""
    assert low <= coverage(interval, draw, truth) <= high


def test_a_shared_difficulty_does_not_widen_the_interval_of_a_ratio() -> None:
    found = ratio_interval(*paired(np.random.default_rng(0)))
    assert found.high - found.low < 0.3  # unpaired, prompts alone would spread it over more than 1
    samples = [1, 2, 4, 3, 2, 5], [1, 1, 2, 2, 1, 3]
    assert ratio_interval(*samples) == ratio_interval(*samples)
    assert ratio_interval(*samples).value == 17 / 10


def test_too_few_or_equal_samples_and_what_cannot_be_divided() -> None:
    """With 2 samples a "95%" interval would contain the true value half of the time."""
    for n in range(1, MIN_SAMPLES):
        assert ratio_interval([1.0, 2.0, 3.0, 4.0, 5.0][:n]) == Interval((n + 1) / 2, None, None)
    assert ratio_interval([0.0] * MIN_SAMPLES) == Interval(0.0, 0.0, 0.0)
    assert ratio_interval([1.0] * 6, [0.0, 0, 0, 0, 0, 0.1]) == Interval(pytest.approx(60), None, None)
    rare = ratio_interval([0.0] + [1.0] * 11, [0.0] + [2.0] * 11)  # not one resample in a billion has only the first
    assert (rare.value, rare.low, rare.high) == (0.5, 0.5, 0.5)
    for samples, message in (
        (([1.0] * 6, [0.0] * 6), "adds up to 0"),
        (([],), "one of each a prompt"),
        (([1.0, 2.0], [1.0]), "one of each a prompt"),
    ):
        with pytest.raises(ValueError, match=message):
            ratio_interval(*samples)


@examples(max_examples=30)
@given(st.lists(st.tuples(st.floats(-10, 10), st.integers(1, 9)), min_size=MIN_SAMPLES, max_size=9))
def test_negating_a_difference_mirrors_its_interval(prompts) -> None:
    more, tokens = zip(*prompts, strict=True)
    one, other = ratio([more, tokens]), ratio([[-each for each in more], tokens])
    assert (other.value, other.low, other.high) == pytest.approx((-one.value, -one.high, -one.low))


def test_a_resample_without_a_figure_might_be_anywhere() -> None:
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


def test_closed_forms_agree_with_the_tables() -> None:
    """Wilson's interval: Newcombe, 1998. Medians: the sign test at 5%."""
    for count, low, high in ((19, 0.764, 0.991), (1, 0.009, 0.236)):
        share = share_interval(count, 20)
        assert (share.value, round(share.low, 3), round(share.high, 3)) == (count / 20, low, high)
    assert share_interval(20, 20).low < 0.85
    assert share_interval(0, 20).high > 0.15
    for freedom, t in ((1, 12.706), (2, 4.303), (5, 2.571), (19, 2.093), (200, 1.972)):
        assert student_t(freedom) == pytest.approx(t, abs=6e-4)
    for n, left_out in ((2, 0), (5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (15, 3), (25, 7), (2000, 955)):
        found = median_interval(list(range(n))[::-1])
        assert (found.value, found.low, found.high) == ((n - 1) / 2, left_out, n - 1 - left_out)
    by_hand = 0.1 + 12.7062 * math.sqrt(0.02) / math.sqrt(2)  # t with one degree of freedom
    assert factor_interval([1.0, math.exp(0.2)]).high == pytest.approx(math.exp(by_hand), rel=1e-4)
    one, other = factor_interval([1.2, 1.5, 1.1]), factor_interval([1 / 1.2, 1 / 1.5, 1 / 1.1])
    assert (other.low, other.high) == pytest.approx((1 / one.high, 1 / one.low))
    for interval in (median_interval, factor_interval):
        assert interval([1.5]) == Interval(pytest.approx(1.5), None, None)
        with pytest.raises(ValueError, match="no "):
            interval([])


# -- powers ----------------------------------------------------------------------------------

LENGTHS = np.linspace(20, 215, 20)


@examples(max_examples=40)
@given(st.floats(0, 100), st.floats(0.01, 100), st.sampled_from(EXPONENTS.tolist()))
def test_an_exact_power_is_recovered(constant, rise, exponent) -> None:
    truth = constant + rise * (LENGTHS / LENGTHS[-1]) ** exponent
    fit = fit_power(LENGTHS, truth)
    assert fit.exponent == pytest.approx(exponent, abs=0.011)
    assert [fit(x) for x in LENGTHS] == pytest.approx(truth, rel=1e-3, abs=1e-3)
    assert fit.grows
    assert fit.low <= fit.exponent <= fit.high


def drifting(rho: float, random: np.random.Generator) -> np.ndarray:
    """Scatter of consecutive points: an AR(1) process with coefficient ``rho`` and variance 1."""
    own, scatter = random.normal(0, 1, 120) * np.sqrt(1 - rho**2), np.zeros(120)
    for i in range(1, 120):
        scatter[i] = rho * scatter[i - 1] + own[i]
    return scatter[-20:]


@pytest.mark.parametrize(
    ("exponent", "rise", "rho", "consecutive", "least"),
    [(0.8, 40, 0.0, False, 0.92), (2.0, 40, 0.0, False, 0.92), (1.5, 8, 0.5, True, 0.88), (1.5, 8, 0.8, True, 0.86)],
)
def test_intervals_contain_the_exponent_and_scatter_does_not_grow(exponent, rise, rho, consecutive, least) -> None:
    """Nineteen in twenty intervals hold the exponent; with drift 95% and 90% do. If points that drift are taken for
    independent, 82% do with rho 0.5 and 57% with 0.8; scatter alone seems to grow one time in ten and one in four."""
    random, held, grown, trials = np.random.default_rng(3), 0, 0, 200
    truth = 1 + rise * (LENGTHS / LENGTHS[-1]) ** exponent
    for _ in range(trials):
        scatter = drifting(rho, random)
        fit = fit_power(LENGTHS, truth + scatter, consecutive=consecutive)
        held += fit.low <= exponent <= fit.high
        grown += fit_power(LENGTHS, 5 + scatter, consecutive=consecutive).grows
    assert least <= held / trials <= 0.995
    assert grown / trials <= 0.09


def test_consecutive_points_without_drift_are_worth_nearly_as_much() -> None:
    random = np.random.default_rng(4)
    assert np.median([worth(random.normal(0, 1, 20)) for _ in range(200)]) > 0.6
    assert np.median([worth(drifting(0.8, random)) for _ in range(200)]) < 0.25
    assert worth(np.zeros(20)) == 1
    # A machine that was busier in the second half of the run: neighbours deviate together.
    late = np.where(LENGTHS > 100, 60.0, 15.0) + np.random.default_rng(5).normal(0, 4, len(LENGTHS))
    alone, together = (fit_power(LENGTHS, late, consecutive=way) for way in (False, True))
    assert (alone.rises, alone.grows, together.rises, together.grows) == (True, True, True, False)


def test_falling_bending_and_interrupted_times() -> None:
    falling = fit_power(LENGTHS, 10 - LENGTHS / 100)
    assert (falling.factor, falling.rises, falling.grows) == (0, False, False)
    bent = fit_power(LENGTHS, np.maximum(0, LENGTHS - 50))  # more than any power through the origin
    assert bent.constant >= 0
    assert bent(LENGTHS[0]) >= 0
    ms = [5.0] * 60
    ms[35] = 500.0
    fit = StepTimes(tuple(range(1, 61)), tuple(ms)).fit
    assert (fit.constant, fit.factor, fit.grows) == (5, 0, False)
    for xs in ((1, 2, 3, 4), (3, 3, 3, 3, 3), (0, 1, 2, 3, 4)):
        with pytest.raises(ValueError, match="5 points, not all at one place"):
            fit_power(xs, xs)


# -- goodness of fit -------------------------------------------------------------------------


def drawn(p: torch.Tensor, times: int, seed: int) -> torch.Tensor:
    tokens = torch.multinomial(p, times, replacement=True, generator=torch.Generator().manual_seed(seed))
    return torch.bincount(tokens, minlength=len(p))


@pytest.mark.parametrize("least", [0.0, 10.0])
def test_correct_samples_fail_as_often_as_they_should(least) -> None:
    """Of 400 tests at 5% some 20 fail, with a standard deviation of 4.4."""
    p = torch.softmax(torch.randn(12, generator=torch.Generator().manual_seed(1)), 0)
    failed = sum(g_test(drawn(p, 2000, seed), p, least=least) < 0.05 for seed in range(400))
    assert 5 <= failed <= 40


def test_wrong_samples_are_noticed_if_there_are_enough_and_rare_ones_are_pooled() -> None:
    p, other = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.45, 0.35, 0.2])
    assert g_test(drawn(other, 20_000, 0), p) < 1e-6
    assert g_test(drawn(other, 20, 0), p) > 1e-3
    p = torch.tensor([0.5, 0.5, 0.0])
    assert g_test(torch.tensor([10, 10, 1]), p) == 0
    assert g_test(torch.tensor([10, 10, 0]), p) == pytest.approx(1)
    rare = torch.cat([torch.tensor([0.9]), torch.full((1000,), 1e-4)])
    assert g_test(drawn(rare, 5000, 0), rare, least=10) > 1e-3
    assert g_test(torch.tensor([5000] + [0] * 1000), rare, least=10) < 1e-6  # together they should occur 500 times
    assert g_test(torch.tensor([7]), torch.tensor([1.0])) == 1


def test_the_degrees_of_freedom_are_one_less_than_the_outcomes() -> None:
    """The tails of chi-square with one and with two are known in closed form."""
    statistic = 2 * (60 * math.log(60 / 50) + 40 * math.log(40 / 50))
    assert g_test(torch.tensor([60, 40]), torch.full((2,), 1 / 2)) == pytest.approx(math.erfc(math.sqrt(statistic / 2)))
    statistic = 2 * sum(seen * math.log(seen / 50) for seen in (60, 50, 40))
    assert g_test(torch.tensor([60, 50, 40]), torch.full((3,), 1 / 3)) == pytest.approx(
        math.exp(-statistic / 2), rel=1e-5
    )
