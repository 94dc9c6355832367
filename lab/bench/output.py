"""A measurement's file: that it can be written is found out before the measurement."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.errors import LabError


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Before a measurement, check that its file can be written; its content stays. A new file left empty is removed.

    Raises:
        LabError: it cannot be written.
    """
    with _told(path):
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
    """Write as JSON. NaN and the infinities, which JSON does not have, become null rather than an error.

    Raises:
        LabError: it cannot be written.
    """
    known = json.loads(json.dumps(result), parse_constant=lambda name: None)
    text = json.dumps(known, indent=1, allow_nan=False) + "\n"
    with _told(path):
        path.write_text(text, "utf-8")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror}.") from error
