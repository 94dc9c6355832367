"""Functions of the expression language, and a value as one number."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from lab.engine.adaptive_window import tokens_per_round
from lab.errors import LabError
from lab.measure.interval import factor_interval
from lab.measure.scaling_fit import TOGETHER
from lab.measure.theory import speedup

Value = float | bool | str | Sequence[float]

MOST_GUESSES = 64


class ExpressionError(LabError, ValueError):
    """Text that is not an expression, or one that cannot be computed from these figures."""


def number(value: Value) -> float:
    """A value as one number: a list's is its median."""
    if isinstance(value, (list, tuple)) and value:
        value = statistics.median(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ExpressionError(f"{_named(value)} stands where a number is wanted.")
    if not abs(value) <= sys.float_info.max:
        raise ExpressionError("a number has become too large to compute with.")
    return float(value)


def _ratios(above: Value, below: Value) -> list[float]:
    """The ratios repeat by repeat; a single one unless both are lists of the same length."""
    if isinstance(above, (list, tuple)) and isinstance(below, (list, tuple)) and len(above) == len(below):
        return [a / b for a, b in zip(above, below, strict=True)]
    return [number(above) / number(below)]


def ratio(above: Value, below: Value) -> float:
    """``above`` / ``below``; for two lists, the median of the ratios repeat by repeat."""
    return statistics.median(_ratios(above, below))


def _likely(above: Value, below: Value) -> tuple[float, float]:
    """The interval by which charts of speeds tell a clear difference; of a single ratio only that."""
    found = factor_interval(_ratios(above, below))
    return (found.value, found.value) if found.low is None else (found.low, found.high)


def clearly(above: Value, below: Value, more: Value, less: Value, neither: Value) -> Value:
    """``more`` if ``above`` is clearly greater, ``less`` if it is clearly smaller."""
    low, high = _likely(above, below)
    return more if low > 1 else less if high < 1 else neither


def _gamma(value: Value) -> int:
    gamma = number(value)
    if not 0 <= gamma <= MOST_GUESSES:
        raise ExpressionError(f"a round has 0 to {MOST_GUESSES} guesses, not {gamma:g}.")
    return int(gamma)


def _numbers(values: Value) -> Sequence[float]:
    if not isinstance(values, (list, tuple)) or not values:
        raise ExpressionError(f"{_named(values)} stands where several numbers are wanted.")
    return values


def near(xs: Value, ys: Value, x: Value) -> float:
    """Median of those ``ys`` whose ``xs`` are the ten nearest to ``x``."""
    wanted = number(x)
    pairs = sorted(zip(_numbers(xs), _numbers(ys), strict=True), key=lambda pair: abs(pair[0] - wanted))
    return statistics.median(y for _, y in pairs[:TOGETHER])


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "ratio": ratio,
    "lowest_ratio": lambda above, below: min(_ratios(above, below)),
    "highest_ratio": lambda above, below: max(_ratios(above, below)),
    "ratio_low": lambda above, below: _likely(above, below)[0],
    "ratio_high": lambda above, below: _likely(above, below)[1],
    "clearly": clearly,
    "ratios": _ratios,
    "highest": lambda *values: max(values, key=number),
    "lowest": lambda *values: min(values, key=number),
    "median": lambda values: statistics.median(_numbers(values)),
    "near": near,
    "tokens_per_round": lambda acceptance, gamma: tokens_per_round(number(acceptance), _gamma(gamma)),
    "speedup": lambda acceptance, gamma, cost: speedup(number(acceptance), _gamma(gamma), number(cost)),
}
"""What an expression may call. ``lowest_ratio``, ``highest_ratio``: for two lists, the least and the greatest ratio of
all repeats. ``ratio_low``, ``ratio_high``: the ends of the mean ratio's 95% interval; a difference is clear if 1 is not
between them, and ``clearly`` chooses one of three texts by that. ``ratios``: those of all repeats, to be compared with
others. ``highest``, ``lowest``: the one of several figures whose median is that, with all its repeats.
``tokens_per_round`` and ``speedup``: equation 1 and theorem 3.8 of Leviathan et al. (2211.17192), of
acceptance rate, gamma and (the latter) the draft's cost."""


def _named(value: Any) -> str:
    return "a word" if isinstance(value, str) else "yes or no" if isinstance(value, bool) else f"{str(value)[:40]!r}"
