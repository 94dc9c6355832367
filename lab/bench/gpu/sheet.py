"""The results of a part of the bench, written to a file as they come: a part may end at any moment."""

from __future__ import annotations

import json
import math
import statistics
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.util.stdio import Output

MOST_GAPS = 6
"""The most lines that a table has on what is missing."""


class Sheet:
    """A part's results, written to disk as they are added.

    Args:
        path: the file, JSON. None: results are kept in memory only.
        until: when the part will be stopped, in seconds as ``time.time`` counts them.

    Attributes:
        entry: all that is known about the part. ``done``: it finished; ``failure``, ``traceback``: what ended it.
        result: what it measured, part of the entry. ``failures``: what could not be measured, and why;
            ``left_out``: what there was no time for.
    """

    def __init__(self, path: Path | None = None, until: float = math.inf) -> None:
        self._path = path
        self._until = until
        self.result: dict = {}
        self.entry: dict = {"result": self.result}

    @property
    def seconds_left(self) -> float:
        return self._until - time.time()

    def keep(self) -> None:
        """Write everything to the file, which is complete at any moment."""
        if self._path:
            new = self._path.with_name(f"{self._path.name}.new")
            new.write_text(json.dumps(self.entry, default=str), "utf-8")
            new.replace(self._path)

    def say(self, line: str) -> None:
        """Print a line for whoever watches, and write what is known."""
        Output().say(line)
        self.keep()

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Measure ``what``, and write it. If it fails, ``failures`` says so, and the part goes on."""
        try:
            yield
        except Exception as error:
            self.result.setdefault("failures", {})[what] = _described(error)
            self.say(f"  {what} failed: {_described(error)[:300]}")
        self.keep()

    def has_time(self, seconds: float, what: str) -> bool:
        """True if so many seconds are left; else add ``what`` to ``left_out``."""
        if self.seconds_left >= seconds:
            return True
        self.result.setdefault("left_out", []).append(f"{what} ({max(self.seconds_left, 0):.0f} s were left)")
        self.keep()
        return False

    def fail(self, error: Exception) -> None:
        """Record the error that ends the whole part."""
        self.entry |= {"failure": _described(error), "traceback": "".join(traceback.format_exception(error))}
        self.say(f"  failed: {_described(error)[:300]}")


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of what was measured, and the number of samples."""
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * [*values]
    return {"median": median, "lower": lower, "upper": upper, "samples": len(values)}


def format_gaps(result: dict) -> list[str]:
    """Lines on what is missing from a part."""
    lines = [f"failed: {what}: {why[:160]}" for what, why in result.get("failures", {}).items()]
    lines += [f"left out: {what}" for what in result.get("left_out", ())]
    return lines[:MOST_GAPS] + [f"and {len(lines) - MOST_GAPS} more"] * (len(lines) > MOST_GAPS)
