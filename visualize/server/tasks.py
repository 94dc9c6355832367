"""Work of which only the present state is of interest: measurements. (A run is told event by event.)"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from visualize.server.work import TICK, Work

Record = dict[str, Any]


class Task(Work):
    """Work that says how far it is."""

    @abstractmethod
    def record(self) -> Record:
        """What the page is to show now, JSON-ready."""


def follow(task: Task | None) -> Iterator[Record]:
    """Its record, whenever it has changed, to the last; nothing where none was begun. Whoever stops listening has
    cancelled it."""
    shown, over = None, task is None
    try:
        while not over:
            over = task.done.wait(TICK)  # asked first: what is there before ``done`` is then surely told
            record = task.record()
            if record != shown:
                shown = record
                yield record
    except GeneratorExit:  # the tab was closed; this runs on the server's event loop, so it only sets a flag
        task.cancelled.set()
        raise
