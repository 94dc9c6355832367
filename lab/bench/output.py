"""A measurement's record and tables. The file is checked before the measurement begins."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from lab.errors import LabError
from lab.measure.measuring import Spread


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of what was measured, and the number of samples."""
    found = Spread.of(values)
    return {"median": found.median, "lower": found.lower, "upper": found.upper, "samples": len(values)}


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two blanks apart: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for first, *cells in (head, *rows):
        right = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *right]).rstrip())
    return "\n".join(lines)


CELL_WIDTH, SHORT = 100, 8
"""The most characters of a text in a table, and the most numbers of a list."""
FIGURES = (("value", "low", "high"), ("median", "lower", "upper"))
"""Names of a figure and of the ends of its interval, or of its quartiles."""


def format_record(record: Mapping[Any, Any], title: str = "") -> str:
    """A record as tables: its own figures, then its rows, group by group. Long lists of numbers are left out."""
    own = {name: cell for name, value in record.items() if (cell := _cell(value)) is not None}
    tables = [format_table([title, ""], [[str(name), cell] for name, cell in own.items()])] if own else []
    for name, value in ((name, value) for name, value in record.items() if value and name not in own):
        where = f"{title}, {name}" if title else str(name)
        groups = value.values() if isinstance(value, Mapping) else value
        if all(map(_is_row, groups)):
            named = [{where: str(key)} | row for key, row in value.items()] if isinstance(value, Mapping) else value
            columns = {name: None for row in named for name in row if _cell(row[name]) is not None}
            tables.append(
                format_table([*columns], [[_cell(row.get(name, "")) or "" for name in columns] for row in named])
            )
        elif isinstance(value, Mapping):
            tables.append(format_record(value, where))
    return "\n\n".join(tables)


def _is_row(value: Any) -> bool:
    """True for what has several cells and nothing that takes a table of its own."""
    parts = value.values() if isinstance(value, Mapping) and _cell(value) is None else None
    return parts is not None and all(_cell(part) is not None or not isinstance(part, Mapping) for part in parts)


def _cell(value: Any) -> str | None:
    """A text, a figure, or one with its interval; None: it takes more than a cell."""
    if value is None or isinstance(value, bool):
        return "-" if value is None else "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    if isinstance(value, list | tuple) and value and all(isinstance(part, str) for part in value):
        value = "; ".join(value)
    if isinstance(value, list | tuple) and 0 < len(value) <= SHORT:
        parts = [_cell(part) for part in value if part is None or isinstance(part, int | float)]
        return " ".join(parts) if len(parts) == len(value) else None
    if isinstance(value, str):
        return shorten(value, CELL_WIDTH, placeholder=" …")
    for middle, low, high in FIGURES if isinstance(value, Mapping) and "name" not in value else ():
        if {middle, low, high} <= value.keys():
            ends = "" if value[low] is None else f" ({value[low]:.4g} to {value[high]:.4g})"
            return f"{value[middle]:.4g}{ends}"
    return None


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Before a measurement, check that its file can be written; its content stays. A new file left empty is removed.
    Raises LabError: it cannot be written."""
    with _named(path):
        new = not path.exists()
        if path.parent.is_file():
            raise LabError(f"{path} cannot be written: {path.parent} is a file.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    try:
        yield
    finally:
        if new and path.exists() and not path.stat().st_size:
            path.unlink()


def write(path: Path, result: dict) -> None:
    """Write as JSON; NaN and the infinities, which it does not have, become null. Raises LabError: it cannot be."""
    finite = json.loads(json.dumps(result), parse_constant=lambda name: None)
    text = json.dumps(finite, indent=1, allow_nan=False) + "\n"
    with _named(path):
        path.write_text(text, "utf-8")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror}.") from error
