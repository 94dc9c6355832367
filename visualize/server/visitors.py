"""Visitors, by browser session: what each has under way, and what each one's next run is compared with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from visualize.run.transcript import head
from visualize.server.live import Live
from visualize.server.shelf import Shelf


class UnderWay(Protocol):
    """What somebody waits for. ``cancelled`` ends it early; ``goes_on``: it is neither over nor about to be."""

    cancelled: threading.Event

    @property
    def goes_on(self) -> bool: ...


Kind = TypeVar("Kind", bound=UnderWay)


class OneEach(Generic[Kind]):
    """One at a time for each visitor. Any method may be called from any thread."""

    def __init__(self) -> None:
        self._theirs: dict[str | None, Kind] = {}
        self._lock = threading.Lock()  # else two clicks at once would begin two, of which nobody could stop the first

    @property
    def under_way(self) -> int:
        """How many go on."""
        return sum(one.goes_on for one in self._theirs.copy().values())

    def last(self, visitor: str | None) -> Kind | None:
        """What the visitor began last."""
        return self._theirs.get(visitor)

    def begin(self, visitor: str | None, make: Callable[[], Kind]) -> Kind | None:
        """Begin what ``make`` makes. None, and nothing happens, while the visitor's last goes on and is not stopped.
        Raises what ``make`` raises."""
        with self._lock:
            last = self.last(visitor)
            if last and last.goes_on:
                return None
            one = self._theirs[visitor] = make()
            return one

    def stop(self, visitor: str | None) -> None:
        """End what the visitor has under way, soon."""
        if one := self.last(visitor):
            one.cancelled.set()

    def leave(self, visitor: str | None) -> None:
        """Forget the visitor, who has closed the page or lost it."""
        self.stop(visitor)
        self._theirs.pop(visitor, None)


class Visitors:
    """One run at a time for each visitor. Runs are kept on ``shelf``."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._runs: OneEach[Live] = OneEach()

    def begin(self, visitor: str | None, make: Callable[[Any], Live]) -> str | None:
        """Begin what ``make`` makes, given what it is to be compared with. None: see ``OneEach``.

        Returns:
            The head of its transcript. The rest is told in its channel: an event that stays pending keeps the
            page's framework, and so the browser, busy.
        """
        last = self._runs.last(visitor)
        live = self._runs.begin(visitor, lambda: make(last.after() if last and last.channel.closed else None))
        if live is None:
            return None
        self._shelf.put(visitor, live.id, live.events)
        return head(live.id, live=True)

    def stop(self, visitor: str | None) -> None:
        """See ``OneEach``."""
        self._runs.stop(visitor)

    def leave(self, visitor: str | None) -> None:
        """Forget the visitor, and the runs."""
        self._runs.leave(visitor)
        self._shelf.clear(visitor)
