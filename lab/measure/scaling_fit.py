"""Growth of a step's time with the length of the text: y = constant + factor x^exponent, and the exponent's interval.

A curve is drawn through medians of ten steps each: a single step that something else held up would otherwise bend it.
What holds up several medians in a row makes its exponent less certain (``worth``).
"""

import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.errors import ConfigError
from lab.measure.interval import LEVEL, student_t
from lab.measure.measuring import decode, steps
from lab.trace.run import Run
from lab.util.messages import counted

EXPONENTS = np.arange(10, 401) / 100
"""Exponents that are tried. An interval that ends at the first or the last of them may extend beyond."""
MIN_POINTS = 5
"""Fewest points: there are three parameters to find, and their scatter."""
TOGETHER = 10
"""Steps per median."""
CACHED, UNCACHED = "with a cache", "without"


@dataclass(frozen=True)
class Power:
    """The likeliest curve and the exponents that do about as well.

    Attributes:
        constant, factor: neither is negative, because times are not.
        low, high: the exponent's interval at ``interval.LEVEL``.
        rises: whether a flat line fits worse than scatter explains if every point counts.
        grows: whether it still does if consecutive points count for less. If not, the exponent means nothing.
    """

    constant: float
    factor: float
    exponent: float
    low: float
    high: float
    rises: bool
    grows: bool

    def __call__(self, x: float) -> float:
        return self.constant + self.factor * x**self.exponent


def fit_power(
    x: Sequence[float], y: Sequence[float], exponents: np.ndarray = EXPONENTS, *, consecutive: bool = False
) -> Power:
    """Least squares: for every exponent the best constant and factor, then the best of all.

    The interval holds the exponents whose sum of squares a t test does not tell from the least (profile likelihood); a
    flat line is rejected by an F test. Both assume scatter that is normal, and independent from point to point unless
    the points are consecutive.

    Args:
        x, y: x above 0.
        exponents: those that are tried.
        consecutive: the points were measured one after another in one run, so that what slows one down also slows its
            neighbours. They then count as ``worth`` says.

    Raises ValueError: fewer than five points, all at one x, or an x that is not above 0.
    """
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(xs) < MIN_POINTS or np.ptp(xs) == 0 or xs.min() <= 0:
        raise ValueError(f"a power and its error take {MIN_POINTS} points, not all at one place, above 0.")
    scale, freedom = xs.max(), len(xs) - 3
    z = (xs / scale) ** exponents[:, None]  # [exponents, points]
    about = z - z.mean(1, keepdims=True)
    factor = np.maximum(0, about @ ys / (about**2).sum(1))
    constant = ys.mean() - factor * z.mean(1)
    below = constant < 0
    constant[below], factor[below] = 0, (z[below] @ ys) / (z[below] ** 2).sum(1)
    off = ys - constant[:, None] - factor[:, None] * z
    squares = (off**2).sum(1)
    best = int(squares.argmin())
    if consecutive:
        freedom = max(1.0, round(freedom * worth(off[best]), 1))
    likely = exponents[squares <= squares[best] * (1 + student_t(freedom) ** 2 / freedom)]
    flat = ((ys - ys.mean()) ** 2).sum()

    def above(freedom: float) -> bool:
        """True if an F test of the two more parameters rejects the flat line."""
        return bool(flat > squares[best] * (1 - LEVEL) ** (-2 / freedom))

    exponent = float(exponents[best])
    return Power(
        constant=float(constant[best]),
        factor=float(factor[best] / scale**exponent),
        exponent=exponent,
        low=float(likely.min()),
        high=float(likely.max()),
        rises=above(len(xs) - 3),
        grows=above(freedom),
    )


def worth(residuals: np.ndarray) -> float:
    """The independent residuals that each of a fit's consecutive residuals is worth, from 1 down to a nineteenth.

    (1 - r) / (1 + r), with r the correlation of neighbours, as for a first-order autoregressive process (Bayley and
    Hammersley, 1946). After a mean and a curve have been fitted, r comes out too low by some 4 (1 + r) / n: with
    that added, simulated intervals hold the truth as often as ``tests/bench/test_statistics.py`` says.
    """
    squares = float(residuals @ residuals)
    if not squares:
        return 1.0
    r = float(residuals[1:] @ residuals[:-1]) / squares
    r = min(max(r + 4 * (1 + r) / len(residuals), 0.0), 0.9)
    return (1 - r) / (1 + r)


@dataclass(frozen=True)
class StepTimes:
    """Lengths in tokens, those read by the end of each step's pass, and milliseconds of the step."""

    lengths: tuple[int, ...]
    ms: tuple[float, ...]

    @property
    def medians(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lengths and milliseconds of every ten steps; steps left over at the end are dropped."""
        starts = range(0, len(self.ms) - TOGETHER + 1, TOGETHER)
        lengths, ms = (
            tuple(statistics.median(values[start : start + TOGETHER]) for start in starts)
            for values in (self.lengths, self.ms)
        )
        return lengths, ms

    @property
    def fit(self) -> Power:
        """The curve through the medians. Raises ValueError for fewer than fifty steps."""
        return fit_power(*self.medians, consecutive=True)

    @property
    def shown(self) -> Power:
        """The curve to draw and to quote: the fit, or a flat line through the medians' mean where they do not rise
        above their scatter, of which any fit makes some growth."""
        fit = self.fit
        return fit if fit.rises else replace(fit, constant=statistics.fmean(self.medians[1]), factor=0.0)


def step_times(run: Run) -> StepTimes:
    """The steps of a run after its prefill, each of one token."""
    decoded = steps(run, "decode")
    first = len(run.prompt_token_ids) + 1
    return StepTimes(tuple(range(first, first + len(decoded))), tuple(step.total_ms for step in decoded))


def growth_share(name: str, done: float) -> float:
    """The share of ``measure_growth`` that is done when the curve ``name`` is ``done``: with a cache a run takes almost
    none of the time, without one it grows with the square."""
    return 0.05 * done if name == CACHED else 0.05 + 0.95 * done**2


def measure_growth(
    engine: Engine,
    prompt: str,
    max_tokens: int,
    *,
    cancelled: threading.Event,
    watch: Callable[[str, int], None] = lambda name, tokens: None,
) -> dict[str, StepTimes]:
    """Decode greedily with and without a cache; ``watch`` is told which has how many tokens. Empty if cancelled. Raises
    ConfigError: too few tokens to draw a curve through; PromptError: a prompt that cannot be decoded; LabError: a run
    failed."""
    least = MIN_POINTS * TOGETHER + 1  # the prefill gives the first
    if max_tokens < least:
        raise ConfigError(f"To see times grow takes {least} tokens or more, not {max_tokens}.")
    room = engine.context_length - len(engine.tokenizer(prompt)["input_ids"])
    if room < least:
        raise ConfigError(
            f"The prompt leaves room for {counted(max(0, room), 'token')}; to see times grow takes {least}."
        )
    plain = engine.clone()
    small = EngineConfig(num_blocks=-(-engine.context_length // EngineConfig.block_size))  # one context is enough
    curves = {}
    for name, config in ((CACHED, small), (UNCACHED, EngineConfig(kv_cache=False))):
        plain.generate(prompt, config, SamplingParams(max_tokens=8, ignore_eos=True))  # to warm up; not counted
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        run = decode(
            plain, prompt, config, sampling, cancelled=cancelled, watch=lambda tokens, _, name=name: watch(name, tokens)
        )
        if run is None:
            return {}
        curves[name] = step_times(run)
    return curves
