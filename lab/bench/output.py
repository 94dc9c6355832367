"""A measurement's record and tables. The file is checked before the measurement begins."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.errors import LabError
from lab.measure.measuring import Spread
from lab.util.messages import format_rate


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of what was measured, and the number of samples."""
    found = Spread.of(values)
    return {"median": found.median, "lower": found.lower, "upper": found.upper, "samples": len(values)}


def quartiles(row: Mapping[str, float]) -> str:
    return f"{format_rate(row['lower'])} to {format_rate(row['upper'])}"


def format_ratios(ratios: Mapping[str, float]) -> str:
    return "\n".join(f"{ratio:6.2f}  {name}" for name, ratio in ratios.items())


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two blanks apart: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for first, *cells in (head, *rows):
        right = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *right]).rstrip())
    return "\n".join(lines)


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
