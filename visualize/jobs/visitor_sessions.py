"""Visitors, by browser session: what each has in progress, and what their next run is compared with."""

import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from lab.errors import LabError
from visualize.jobs.live_run import LiveJob
from visualize.jobs.run_store import RunStore
from visualize.reduce.frames import head


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
            if self.goes_on(visitor):
                return None
            one = make()
            self._theirs.pop(visitor, None)  # moves the visitor to the end
            self._theirs[visitor] = one
            self._forget(list(self._theirs)[:-MOST])
            return one

    def goes_on(self, visitor: str | None) -> bool:
        """True if the visitor has something in progress."""
        last = self.last(visitor)
        return last is not None and last.goes_on

    def keep(self, visitors: Collection[str | None]) -> None:
        """Forget all others who have nothing in progress."""
        with self._lock:
            self._forget(self._theirs.keys() - visitors)

    def _forget(self, visitors: Iterable[str | None]) -> None:
        for visitor in visitors:
            if not self.goes_on(visitor):
                self._theirs.pop(visitor, None)

    def stop(self, visitor: str | None) -> None:
        """Cancel what the visitor has in progress; it ends soon."""
        if one := self.last(visitor):
            one.cancelled.set()

    def leave(self, visitor: str | None) -> None:
        """Forget the visitor, who has closed the page or lost the connection."""
        self.stop(visitor)
        self._theirs.pop(visitor, None)


class VisitorSessions:
    """One run at a time for each visitor. Runs are kept in ``store``, and forgotten when they are gone from there."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._runs: OnePerSession[LiveJob] = OnePerSession()
        self.busy, self.stop = self._runs.goes_on, self._runs.stop

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
        self._runs.keep(self._store.visitors)
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

    def leave(self, visitor: str | None) -> None:
        """Forget the visitor and their runs."""
        self._runs.leave(visitor)
        self._store.clear(visitor)
