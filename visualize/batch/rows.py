"""A table of the page: only what has changed in a row is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from visualize.figures.base import Columns, Patch

Row = Mapping[str, Any]


class Rows:
    """Rows as they were last told, by number; a new one has the next number."""

    def __init__(self, told: Mapping[int, Row] | None = None) -> None:
        self._told: dict[int, Row] = dict(told or {})

    def patches(self, number: int, row: Row) -> list[Patch]:
        """What makes the row that was told this one."""
        was = self._told.get(number)
        self._told[number] = row
        if was is None:
            return [[0, None, row]]
        changed = {name: value for name, value in row.items() if was[name] != value}
        return [[0, number, changed]] if changed else []

    def columns(self) -> Columns:
        """Every row as it was last told, in the order of their numbers."""
        rows = [self._told[number] for number in sorted(self._told)]
        return [{name: [row[name] for row in rows] for name in (rows[0] if rows else ())}]
