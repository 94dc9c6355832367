"""A table on the page: of each row, only what changed is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from visualize.charts.base import Columns, Patch

Row = Mapping[str, Any]


class Rows:
    """Rows as last sent, by number; a new row gets the next number. The first ``count``, maybe millions, equal
    ``alike`` until something else is sent for them."""

    def __init__(self, count: int = 0, alike: Row | None = None) -> None:
        self._count, self._alike = count, alike
        self._told: dict[int, Row] = {}

    def patches(self, number: int, row: Row) -> list[Patch]:
        """The patches that turn the row as last sent into ``row``."""
        was = self._told.get(number, self._alike if number < self._count else None)
        self._told[number] = row
        if was is None:
            return [[0, None, row]]
        changed = {name: value for name, value in row.items() if was[name] != value}
        return [[0, number, changed]] if changed else []

    def columns(self, most: int | None = None) -> Columns:
        """The first ``count`` rows, or the first ``most`` of those, as last sent."""
        rows = [self._told.get(number, self._alike) for number in range(self._count)[:most]]
        return [{name: [row[name] for row in rows] for name in (rows[0] if rows else ())}]
