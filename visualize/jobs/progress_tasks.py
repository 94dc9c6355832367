"""Work of which only the current state matters: measurements. (A run is reported event by event.)"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from visualize.jobs.job_queue import TICK, QueuedJob

Record = dict[str, Any]


class Task(QueuedJob):
    """Work that reports its progress."""

    @abstractmethod
    def record(self) -> Record:
        """What the page should show now, JSON-ready."""


def follow(task: Task | None) -> Iterator[Record]:
    """The task's record whenever it changes, up to the last; nothing without a task. Closing the iterator cancels
    it."""
    shown, over = None, task is None
    try:
        while not over:
            over = task.done.wait(TICK)  # checked first, so that nothing before ``done`` is missed
            record = task.record()
            if record != shown:
                shown = record
                yield record
    except GeneratorExit:  # the tab was closed; this runs on the server's event loop, so it only sets a flag
        task.cancelled.set()
        raise
