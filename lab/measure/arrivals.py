"""Requests that arrive while others are decoded, on an engine of their own that is driven step by step."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lab.config import EngineConfig
from lab.engine.engine import Engine
from lab.errors import ConfigError
from lab.measure.workload import PlannedRequest
from lab.trace.events import Event, Finished
from lab.trace.recorder import BatchEvent, BatchStep


def arrivals(
    engine: Engine,
    requests: Sequence[PlannedRequest],
    config: EngineConfig,
    *,
    every: int = 0,
    max_num_seqs: int = 64,
    cancelled: threading.Event | None = None,
) -> Iterator[BatchStep]:
    """Decode ``requests``, which arrive all at once or one ``every`` so many steps, with the models of ``engine`` and
    nothing cached. Each has its own cache priority. Their sequences are numbered (``owner``) in order: all
    continuations of a request, then the next one's. Steps in which nothing happens, because the next request has not
    arrived, take no time and are left out.

    Setting ``cancelled`` ends it after the step under way; the last step then reports that the requests have ended.
    Raises LabError: one of the requests can never be decoded, or the synthetic drafter is asked for. None is begun
    then.
    """
    if config.speculative == "synthetic":
        raise ConfigError(
            "speculative='synthetic' decodes every request plainly before it begins, so requests would not arrive "
            "when they should. Choose another drafter."
        )
    cancelled = cancelled or threading.Event()
    heard: list[BatchEvent] = []
    began = time.perf_counter()

    def watch(owner: int, seconds: float, event: Event) -> None:
        heard.append(BatchEvent((seconds - began) * 1000, owner, event))

    own = engine.clone(max_num_seqs=max_num_seqs, on_event=watch)
    coming = deque(
        own.prepare(
            one.prompt,
            replace(config, cache_priority=one.cache_priority),
            one.sampling,
            continuations=one.continuations,
            cancelled=cancelled,
        )
        for one in requests
    )
    began = time.perf_counter()
    step = left = come = 0
    while True:
        if cancelled.is_set():
            coming.clear()
        while coming and step >= come * every:
            left += len(coming.popleft()())
            come += 1
        own.step()
        step += 1
        entries, heard[:] = heard[:], []
        left -= sum(isinstance(entry.event, Finished) for entry in entries)
        last = not (coming or left)
        if entries or last:
            yield BatchStep(entries, last)
        if last:
            return
