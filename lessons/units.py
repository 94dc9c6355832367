"""Numbers as a lesson writes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Literal, get_args

BYTES = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}

TINY = 1e-9
"""Anything below is zero, or rounding."""

Unit = Literal["number", "count", "tokens", "times", "percent", "ms", "bytes", "nats", "digits"]
UNITS: tuple[Unit, ...] = get_args(Unit)


def significant(value: float) -> str:
    """Three significant digits, no exponent; from a thousand on, whole numbers with digits in groups."""
    if not math.isfinite(value):
        return "–"
    if abs(value) < TINY:
        return "0"
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 1000:
        return f"{rounded:,.0f}".replace("-", "−")
    places = max(0, 2 - math.floor(math.log10(abs(rounded))))
    text = f"{rounded:.{places}f}"
    return (text.rstrip("0").rstrip(".") if places > 2 else text).replace("-", "−")


def _bytes(value: float) -> str:
    name, scale = next(((name, scale) for name, scale in BYTES.items() if abs(value) >= scale), ("B", 1))
    return f"{significant(value / scale)} {name}"


def _ms(value: float) -> str:
    return f"{significant(value)} ms" if abs(value) < 999.5 else f"{significant(value / 1000)} s"


WRITE: dict[Unit, Callable[[float], str]] = {
    "number": lambda value: f"{value:,.0f}".replace("-", "−") if value == round(value) else significant(value),
    "count": lambda value: f"{round(value):,}",
    "tokens": lambda value: f"{round(value):,} token{'s' * (round(value) != 1)}",
    "times": lambda value: f"{significant(value)}×",
    "percent": lambda value: f"{significant(100 * value)}%",
    "ms": _ms,
    "bytes": _bytes,
    "nats": lambda value: f"{significant(value)} nats",
    "digits": lambda value: f"{Decimal(repr(value)).normalize():,f}".replace("-", "−") if math.isfinite(value) else "–",
}
"""A number in a unit, as text. Shares are given as shares (0.5 is 50%), times in milliseconds. ``digits``: all that the
number has, of one that was rounded before."""
