"""A lesson's text with placeholders for the numbers of a run: ``{{ expression }}``, ``{{ expression | unit }}``.

What an explanation says about a run has to come from the run. Other numbers in it are refused, except cited ones, which
are the text of a link: ``[295 operations a byte](https://...)``.
"""

from __future__ import annotations

import re

from lessons.expressions import Expression, Figures
from lessons.functions import ExpressionError, number
from lessons.units import UNITS, WRITE

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
    """Text and its placeholders, parsed.

    Raises:
        ExpressionError: a placeholder without an expression, or with an unknown unit.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ExpressionError(f"a text is wanted, not {text!r}.")
        self.text = text.strip()
        self._parts: list[str | tuple[Expression, str | None]] = []
        for i, part in enumerate(PLACE.split(self.text)):
            self._parts.append(_place(part) if i % 2 else part)

    @property
    def expressions(self) -> list[Expression]:
        return [part[0] for part in self._parts if isinstance(part, tuple)]

    def fill(self, figures: Figures) -> str:
        """The text with all placeholders filled.

        Raises:
            ExpressionError: a figure is missing, or of a kind that its placeholder cannot hold.
        """
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
