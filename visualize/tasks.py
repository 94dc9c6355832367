"""Work of which only the present state is of interest: measurements. (A run is told event by event.)"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from visualize.work import TICK, Work

Record = dict[str, Any]


class Task(Work):
    """Work that says how far it is."""

    @abstractmethod
    def record(self) -> Record:
        """What the page is to show now, JSON-ready."""


Kind = TypeVar("Kind", bound=Task)


class Tasks:
    """One at a time for each visitor, by browser session."""

    def __init__(self) -> None:
        self._tasks: dict[str | None, Task] = {}

    def begin(self, session: str | None, make: Callable[[], Kind]) -> Kind | None:
        """Begin what ``make`` makes. None, and nothing happens, while the visitor's last goes on and is not stopped."""
        last = self._tasks.get(session)
        if last and last.goes_on:
            return None
        task = self._tasks[session] = make()
        return task

    def stop(self, session: str | None) -> None:
        """Cancel what a visitor has under way."""
        if task := self._tasks.get(session):
            task.cancelled.set()

    def leave(self, session: str | None) -> None:
        """A visitor has gone."""
        self.stop(session)
        self._tasks.pop(session, None)


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
