"""Whose run is under way, and what each visitor's next one is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from visualize.live import Live
from visualize.shelf import Shelf
from visualize.transcript import head


class Visitors:
    """One run at a time for each visitor. Runs are kept on ``shelf``."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._runs: dict[str | None, Live] = {}

    def begin(self, visitor: str | None, make: Callable[[Any], Live]) -> str | None:
        """Begin what ``make`` makes, given what it is to be compared with. Nothing happens while the visitor's last
        run goes on and is not stopped.

        Returns:
            The head of its transcript. The rest is told in its channel: an event that stays pending keeps the
            page's framework, and so the browser, busy.
        """
        last = self._runs.get(visitor)
        if last and last.goes_on:
            return None
        live = self._runs[visitor] = make(last.after() if last and last.channel.closed else None)
        self._shelf.put(visitor, live.id, live.events)
        return head(live.id, live=True)

    def stop(self, visitor: str | None) -> None:
        """End the visitor's run, soon."""
        if live := self._runs.get(visitor):
            live.cancelled.set()

    def leave(self, visitor: str | None) -> None:
        """Forget the visitor, who has closed the page or lost it."""
        self.stop(visitor)
        self._runs.pop(visitor, None)
        self._shelf.clear(visitor)
