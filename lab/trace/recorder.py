"""Stamps a sequence's events with the time, as they happen."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lab.trace.events import Event

log = logging.getLogger(__name__)

EventListener = Callable[[int, float, Event], None]
"""Called as ``on_event(owner, seconds, event)``, ``seconds`` by ``time.perf_counter``."""


class Recorder:
    """Stamps events with the time since the first one and holds them until they are drained. ``owner``: the sequence's
    number, for ``on_event``, which is called at once with every event."""

    def __init__(self, owner: int = 0, on_event: EventListener | None = None) -> None:
        self._owner, self._on_event = owner, on_event
        self._began: float | None = None
        self._pending: deque[Event] = deque()  # one thread may add while others drain

    def emit(self, event_type: type[Event], **fields: Any) -> None:
        """Make an event of ``fields`` and the time, hold it, and call the listener. The first one starts the clock."""
        now = time.perf_counter()
        self._began = now if self._began is None else self._began
        event = event_type(t_ms=(now - self._began) * 1000, **fields)
        self._pending.append(event)
        if self._on_event:
            try:
                self._on_event(self._owner, now, event)
            except Exception:  # a listener must not end what it listens to
                log.exception("the listener failed at an event %s", event.kind)

    @property
    def began(self) -> bool:
        return self._began is not None

    @property
    def pending(self) -> bool:
        return bool(self._pending)

    def drain(self) -> Iterator[Event]:
        """The pending events, until there are no more. If several threads drain, each event goes to one of them."""
        while True:
            try:
                event = self._pending.popleft()
            except IndexError:
                return
            yield event


class BatchEvent(NamedTuple):
    """An event among those of many sequences: ``owner`` is its sequence's number, as in block events, and ``t_ms`` the
    time on a clock that they all share."""

    t_ms: float
    owner: int
    event: Event


class BatchStep(NamedTuple):
    """One step of an engine that decodes many sequences, arrivals before it included. ``last``: no sequence is left."""

    entries: list[BatchEvent]
    last: bool
