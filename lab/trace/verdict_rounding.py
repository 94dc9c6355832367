"""A verdict's numbers, rounded for reading: to so many digits that they still show what was decided."""

import functools
import math
from typing import NamedTuple

MIN_DIGITS, MAX_DIGITS = 3, 15
"""Significant digits. More than ``MAX_DIGITS`` a float does not have."""


class RoundedVerdict(NamedTuple):
    """p, q and u of a verdict to so many ``digits``, and what a reader works out from these: ``product`` is u q,
    ``ratio`` is p / q (infinite where q is 0)."""

    digits: int
    p: float
    q: float
    u: float
    product: float
    ratio: float

    @property
    def chance(self) -> float:
        """The probability of being accepted: min(1, p / q)."""
        return min(1.0, self.ratio)

    def show(self, accepted: bool) -> bool:
        """True if these numbers show that the verdict was ``accepted``, or that it was not: by the product and p, and
        by u and the chance, neither of which are equal."""
        if accepted:
            return self.product < self.p and self.u < self.chance
        return self.product > self.p and self.u > self.chance


@functools.lru_cache(maxsize=256)
def round_verdict(p: float, q: float, u: float, *, accepted: bool, fewest: int = MIN_DIGITS) -> RoundedVerdict:
    """A verdict's numbers with as few digits as show what was decided. With the ``fewest`` if none do: the two sides
    are equal, and the token was rejected. Cached: a verdict is shown in several places while its run goes on."""
    for digits in range(fewest, MAX_DIGITS + 1):
        if (numbers := _to(digits, p, q, u)).show(accepted):
            return numbers
    return _to(fewest, p, q, u)


def in_order(a: float, b: float) -> tuple[float, float]:
    """Two numbers with as few digits as show which is less. With the fewest if they are equal."""
    for digits in range(MIN_DIGITS, MAX_DIGITS + 1):
        x, y = significant(a, digits), significant(b, digits)
        if (x < y) == (a < b) and (x > y) == (a > b):
            return x, y
    return significant(a), significant(b)


def written(number: float) -> str:
    return f"{number:.{MAX_DIGITS}g}"


def significant(value: float, digits: int = MIN_DIGITS) -> float:
    return float(f"{value:.{digits}g}")


def _to(digits: int, *numbers: float) -> RoundedVerdict:
    p, q, u = (significant(number, digits) for number in numbers)
    ratio = significant(p / q, digits) if q else math.inf
    return RoundedVerdict(digits, p, q, u, significant(u * q, digits), ratio)
