"""Waiting for another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(happened: Callable[[], object], seconds: float = 30) -> None:
    """Wait for it. Raises AssertionError if it has not happened after ``seconds``, generous for a busy machine."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.005)
