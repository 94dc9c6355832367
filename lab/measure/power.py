"""How something grows: y = constant + factor x^exponent, and how certain the exponent is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.measure.interval import LEVEL, student_t

EXPONENTS = np.arange(10, 401) / 100
"""Exponents that are tried. An interval that ends at the first or the last of them may extend beyond."""
FEWEST = 5
"""Fewest points: there are three parameters to find, and their scatter."""


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

    Raises:
        ValueError: fewer than five points, all at one x, or an x that is not above 0.
    """
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(xs) < FEWEST or np.ptp(xs) == 0 or xs.min() <= 0:
        raise ValueError(f"a power and its error take {FEWEST} points, not all at one place, above 0.")
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
        """Whether an F test of the two more parameters rejects the flat line."""
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
    """How many independent residuals each of a fit's consecutive residuals is worth, from 1 down to a nineteenth.

    (1 - r) / (1 + r), with r the correlation of neighbours, as for a first-order autoregressive process (Bayley and
    Hammersley, 1946). After a mean and a curve have been fitted, r comes out too low by some 4 (1 + r) / n: with
    that added, simulated intervals hold the truth as often as ``tests/bench/test_power.py`` says.
    """
    squares = float(residuals @ residuals)
    if not squares:
        return 1.0
    r = float(residuals[1:] @ residuals[:-1]) / squares
    r = min(max(r + 4 * (1 + r) / len(residuals), 0.0), 0.9)
    return (1 - r) / (1 + r)
