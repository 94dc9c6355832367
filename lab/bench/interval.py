"""How sure a figure is: confidence intervals over prompts (or windows of a text), 95% throughout.

Prompts are resampled, not tokens: tokens of one text are alike, and counting each
as a sample of its own would make a figure look surer than it is.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

LEVEL = 0.95
RESAMPLES = 10_000
SEED = 0
METHOD = (
    f"{LEVEL:.0%} bootstrap over prompts (or windows), the same resamples for both sides of a ratio or difference: "
    f"{RESAMPLES:,} resamples, seed {SEED}, percentiles expanded for small samples (Hesterberg, 1411.5279); "
    "shares: Wilson's interval"
)


@dataclass(frozen=True)
class Interval:
    """A figure and its confidence interval. One sample says nothing of the spread: ``low`` and ``high`` are None."""

    value: float
    low: float | None
    high: float | None

    def map(self, increasing: Callable[[float], float]) -> Interval:
        """The same interval on another scale: percentiles move with any increasing function."""
        ends = (None if end is None else float(increasing(end)) for end in (self.low, self.high))
        return Interval(float(increasing(self.value)), *ends)

    def __str__(self) -> str:
        spread = "" if self.low is None else f" ({self.low:.5g} to {self.high:.5g})"
        return f"{self.value:.5g}{spread}"


def ratio_interval(
    numerator: Sequence[float],
    denominator: Sequence[float] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Interval:
    """sum(numerator) / sum(denominator), one entry a prompt; without a denominator the mean.

    A difference is the mean of the prompts' differences; a ratio of means is that of the sums.

    Percentile bootstrap (Efron, 1979). Its plain percentiles are too narrow for few samples: 95%
    covers about 89% with 8 of them. They are therefore taken where Student's t of n - 1 degrees of freedom
    would put them (Hesterberg, 1411.5279: expanded percentiles). Strongly skewed samples are covered less.

    Raises:
        ValueError: no samples, or not as many above as below.
    """
    above = np.asarray(numerator, dtype=float)
    below = np.ones_like(above) if denominator is None else np.asarray(denominator, dtype=float)
    n = len(above)
    if n == 0 or above.shape != below.shape:
        raise ValueError(f"{n} numerators and {len(below)} denominators: one of each a prompt, and at least one.")
    value = float(above.sum() / below.sum())
    if n == 1:
        return Interval(value, None, None)
    random = np.random.default_rng(seed)
    drawn = []
    for first in range(0, resamples, 1000):  # in parts: n may be large
        counts = random.multinomial(n, np.full(n, 1 / n), size=min(1000, resamples - first))
        drawn.append((counts @ above) / (counts @ below))
    tail = NormalDist().cdf(-np.sqrt(n / (n - 1)) * student_t(LEVEL, n - 1))
    low, high = np.quantile(np.concatenate(drawn), [tail, 1 - tail])
    return Interval(value, float(low), float(high))


def median_interval(values: Sequence[float]) -> Interval:
    """The median, and two of the values between which it lies with a probability of ``LEVEL`` or more.

    Each value is as likely to be below the median as above it, whatever their distribution: what is left out at either
    end follows from the binomial distribution. Fewer than six are too few for that; then it is from the least of
    them to the most.

    Raises:
        ValueError: no values.
    """
    ordered, n = sorted(map(float, values)), len(values)
    if n == 0:
        raise ValueError("a median of no values.")
    if n == 1:
        return Interval(ordered[0], None, None)
    left_out = below = 0
    while 2 * (below := below + math.comb(n, left_out)) <= (1 - LEVEL) * 2**n:
        left_out += 1
    end = max(0, left_out - 1)
    return Interval(statistics.median(ordered), ordered[end], ordered[n - 1 - end])


def share_interval(count: int, n: int) -> Interval:
    """count / n (Wilson, 1927): unlike the bootstrap's, not of zero width when all n are alike."""
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    share = count / n
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


@functools.cache
def student_t(level: float, freedom: int) -> float:
    """The t that a Student variable stays within, either side of 0, with probability ``level``.

    With t = sqrt(freedom) tan(angle) the density is cos(angle)^(freedom - 1), which is easily added up.
    """
    angle = np.linspace(0, np.pi / 2, 100_001)
    density = np.cos(angle) ** (freedom - 1)
    within = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return float(np.sqrt(freedom) * np.tan(np.interp(level * within[-1], within, angle)))
