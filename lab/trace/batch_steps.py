"""The events of many sequences, step by step."""

from __future__ import annotations

from typing import NamedTuple

from lab.trace.events import Event


class BatchEvent(NamedTuple):
    """An event among those of many sequences: ``owner`` is its sequence's number, as in block events, and ``t_ms`` the
    time on a clock that they all share."""

    t_ms: float
    owner: int
    event: Event


class BatchStep(NamedTuple):
    """What happened in one step of an engine that decodes many sequences, arrivals just before it included. ``last``:
    no sequence is left."""

    entries: list[BatchEvent]
    last: bool
