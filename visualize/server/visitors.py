"""Visitors, by browser session: what each has under way, and what each one's next run is compared with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
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
MOST = 500
"""Visitors whose last is kept: not all who come say when they leave."""


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
            one = make()
            self._theirs.pop(visitor, None)  # who began last is last
            self._theirs[visitor] = one
            self._forget(list(self._theirs)[:-MOST])
            return one

    def keep(self, wanted: Callable[[str | None, Kind], bool]) -> list[str | None]:
        """Forget who is not ``wanted``, unless it goes on. Returns those who were forgotten."""
        with self._lock:
            return self._forget([visitor for visitor, one in self._theirs.copy().items() if not wanted(visitor, one)])

    def _forget(self, visitors: Iterable[str | None]) -> list[str | None]:
        over = [visitor for visitor in visitors if (one := self.last(visitor)) and not one.goes_on]
        for visitor in over:
            self._theirs.pop(visitor, None)
        return over

    def stop(self, visitor: str | None) -> None:
        """End what the visitor has under way, soon."""
        if one := self.last(visitor):
            one.cancelled.set()

    def leave(self, visitor: str | None) -> None:
        """Forget the visitor, who has closed the page or lost it."""
        self.stop(visitor)
        self._theirs.pop(visitor, None)


class Visitors:
    """One run at a time for each visitor. Runs are kept on ``shelf``, and no longer than there. Those of a visitor who
    never came to hear of one go when others begin."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._runs: OneEach[Live] = OneEach()

    def begin(self, visitor: str | None, make: Callable[[Any], Live], *, against: str = "") -> str | None:
        """Begin what ``make`` makes, given what it is to be compared with. None: see ``OneEach``.

        Args:
            against: see ``head``.

        Returns:
            The head of its transcript. The rest is told in its channel: an event that stays pending keeps the
            page's framework, and so the browser, busy.
        """
        last = self._runs.last(visitor)
        live = self._runs.begin(visitor, lambda: make(last.after() if last and last.channel.closed else None))
        if live is None:
            return None
        self._shelf.put(visitor, live.id, live.events)
        there = self._shelf.visitors
        for other in self._runs.keep(lambda other, run: other in there and not run.deserted):
            self._shelf.clear(other)
        return head(live.id, live=True, against=against)

    def stop(self, visitor: str | None) -> None:
        """See ``OneEach``."""
        self._runs.stop(visitor)

    def leave(self, visitor: str | None) -> None:
        """Forget the visitor, and the runs."""
        self._runs.leave(visitor)
        self._shelf.clear(visitor)
