"""Visitors, by browser session: what each has in progress, and what their next run is compared with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from lab.errors import LabError
from visualize.jobs.live_run import LiveJob
from visualize.jobs.run_store import RunStore
from visualize.reduce.ndjson import head


class Cancellable(Protocol):
    """A visitor's job. Setting ``cancelled`` ends it early; ``goes_on``: it is neither over nor cancelled."""

    cancelled: threading.Event

    @property
    def goes_on(self) -> bool: ...


One = TypeVar("One", bound=Cancellable)
MOST = 500
"""Most visitors who are remembered: they may leave without notice."""
MEANWHILE = "A run began meanwhile, so the file was not opened. Open it again when the run is over."


class OnePerSession(Generic[One]):
    """One thing at a time for each visitor. All methods are thread-safe."""

    def __init__(self) -> None:
        self._theirs: dict[str | None, One] = {}
        self._lock = threading.Lock()  # else two clicks at once could begin two, the first of which nobody could stop

    @property
    def under_way(self) -> int:
        """The number in progress."""
        return sum(one.goes_on for one in self._theirs.copy().values())

    def last(self, visitor: str | None) -> One | None:
        """The visitor's latest."""
        return self._theirs.get(visitor)

    def begin(self, visitor: str | None, make: Callable[[], One]) -> One | None:
        """Begin what ``make`` makes. Does nothing and returns None while the visitor's last is in progress and not
        stopped. Raises what ``make`` raises."""
        with self._lock:
            last = self.last(visitor)
            if last and last.goes_on:
                return None
            one = make()
            self._theirs.pop(visitor, None)  # moves the visitor to the end
            self._theirs[visitor] = one
            self._forget(list(self._theirs)[:-MOST])
            return one

    def keep(self, wanted: Callable[[str | None, One], bool]) -> list[str | None]:
        """Forget visitors who are not ``wanted`` and have nothing in progress. Returns those who were forgotten."""
        with self._lock:
            return self._forget([visitor for visitor, one in self._theirs.copy().items() if not wanted(visitor, one)])

    def _forget(self, visitors: Iterable[str | None]) -> list[str | None]:
        over = [visitor for visitor in visitors if (one := self.last(visitor)) and not one.goes_on]
        for visitor in over:
            self._theirs.pop(visitor, None)
        return over

    def stop(self, visitor: str | None) -> None:
        """Cancel what the visitor has in progress; it ends soon."""
        if one := self.last(visitor):
            one.cancelled.set()

    def leave(self, visitor: str | None) -> None:
        """Forget the visitor, who has closed the page or lost the connection."""
        self.stop(visitor)
        self._theirs.pop(visitor, None)


class VisitorSessions:
    """One run at a time for each visitor. Runs are kept on ``store``, and forgotten when they are gone from there.
    Those of a visitor who never read one are dropped when another run begins."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._runs: OnePerSession[LiveJob] = OnePerSession()

    def begin(self, visitor: str | None, make: Callable[[Any], LiveJob], *, against: str = "") -> str | None:
        """Begin what ``make`` makes, given what it is to be compared with. None: see ``OnePerSession``.

        Args:
            against: see ``head``.

        Returns:
            The head of its transcript. The rest comes through its channel: an event that stays pending would keep
            the page's framework, and so the browser, busy.
        """
        last = self._runs.last(visitor)
        live = self._runs.begin(visitor, lambda: make(last.after() if last and last.channel.closed else None))
        if live is None:
            return None
        self._store.put(visitor, live.id, live.events)
        there = self._store.visitors
        for other in self._runs.keep(lambda other, run: other in there and not run.deserted):
            self._store.clear(other)
        return head(live.id, live=True, against=against)

    def reopen(self, visitor: str | None, path: Path) -> str:
        """See ``RunStore``. A run from a file takes the place of the visitor's own, with which no later one is
        compared. But one that goes on, or began while the file was read, stays: it was asked for last, since nothing
        is opened during a run (static/header.js)."""
        before = self._runs.last(visitor)

        def accept() -> None:
            if (last := self._runs.last(visitor)) and (last.goes_on or last is not before):
                raise LabError(MEANWHILE)
            self.leave(visitor)

        return self._store.reopen(visitor, path, accept)

    def busy(self, visitor: str | None) -> bool:
        """True if the visitor has a run in progress."""
        last = self._runs.last(visitor)
        return last is not None and last.goes_on

    def stop(self, visitor: str | None) -> None:
        """See ``OnePerSession``."""
        self._runs.stop(visitor)

    def leave(self, visitor: str | None) -> None:
        """Forget the visitor and their runs."""
        self._runs.leave(visitor)
        self._store.clear(visitor)
