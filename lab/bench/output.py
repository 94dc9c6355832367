"""Where a measurement goes: lines for whoever watches, and a file. What fails there takes no measurement with it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.config import LabError


class Output:
    """The standard output.

    Attributes:
        failure: why nothing more is said. None: nothing has failed.
    """

    def __init__(self) -> None:
        self.failure: OSError | None = None

    def say(self, line: str) -> None:
        """Never raises: where it can no longer be written (``| head``), the measurement goes on in silence."""
        try:
            print(line, flush=True)
        except OSError as error:
            self.failure = error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be flushed goes nowhere


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Before a measurement, see that its file can be written; what is in it stays. None is left if nothing comes of it.

    Raises:
        LabError: it cannot.
    """
    new = not path.exists()
    with _told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    try:
        yield
    finally:
        if new and path.exists() and not path.stat().st_size:
            path.unlink()


def write(path: Path, result: dict) -> None:
    """As JSON, which has no number that is none: NaN and the infinities are null, and cost no measurement.

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
