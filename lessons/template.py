"""A lesson's text with placeholders for the numbers of a run: ``{{ expression }}``, ``{{ expression | unit }}``.

What an explanation says about a run has to come from the run. Other numbers in it are refused, except cited ones, which
are the text of a link: ``[295 operations a byte](https://...)``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal, get_args

from lessons.expressions import Expression, ExpressionError, Figures, number

PLACE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_NOT_PROSE = re.compile(
    r"\{\{.*?\}\}"  # a placeholder
    r"|\$\$.*?\$\$|\$[^$\n]+\$"  # a formula
    r"|```.*?```|`[^`\n]+`"  # code
    r"|!?\[[^\]]*\]\([^)]*\)"  # a link: cited
    r"|\blessons? \d+(?:(?:, | and )\d+)*",
    re.DOTALL,
)
_NUMBER = re.compile(
    r"(?<!\w)\d+(?:[.,]\d+)*(?!\w)%?"  # not INT8, 7B
    r"|\b(?:two|three|four|five|six|seven|eight|nine|ten|twenty|fifty|hundred|thousand)[ -]?(?:times|fold|percent)\b"
    r"|\b(?:twice|thrice)\b",
    re.IGNORECASE,
)


class Template:
    """Text and its placeholders, parsed. Raises ExpressionError: a placeholder without an expression, or with an
    unknown unit."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ExpressionError(f"a text is wanted, not {text!r}.")
        self.text = text.strip()
        self._parts: list[Any] = PLACE.split(self.text)
        self._parts[1::2] = map(_place, self._parts[1::2])

    @property
    def expressions(self) -> list[Expression]:
        return [expression for expression, _ in self._parts[1::2]]

    def fill(self, figures: Figures) -> str:
        """The text with all placeholders filled. Raises ExpressionError: a figure is missing, or of a kind that its
        placeholder cannot hold."""
        return "".join(part if isinstance(part, str) else _written(*part, figures) for part in self._parts)

    def blank(self, mark: str) -> str:
        """The text with ``mark`` in all placeholders."""
        return "".join(part if isinstance(part, str) else mark for part in self._parts)

    def hard_coded(self) -> list[str]:
        """Numbers in the text that come neither from a run nor from a cited source."""
        in_places = [expression.text for expression in self.expressions if not expression.names]
        return in_places + [found.group() for found in _NUMBER.finditer(_NOT_PROSE.sub(" ", self.text))]

    def __repr__(self) -> str:
        return f"Template({self.text!r})"


def _place(text: str) -> tuple[Expression, str | None]:
    expression, bar, unit = text.rpartition("|")
    if not bar:
        return Expression(unit), None
    if unit.strip() not in UNITS:
        raise ExpressionError(f"there is no unit {unit.strip()!r}; there are {', '.join(UNITS)}.")
    return Expression(expression), unit.strip()


def _written(expression: Expression, unit: str | None, figures: Figures) -> str:
    value = expression.value(figures)
    if unit is None and isinstance(value, str):
        return value
    return WRITE[unit or "number"](number(value))


# -- units -----------------------------------------------------------------------------------

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
