"""A run in a thread of its own, and a second thread that reports it.

The engine must not wait for those who watch: its thread only appends events to a
list. The second polls about ten times a second, has new events reduced (``visualize.jobs.reducer_process``) and
puts the result into a channel.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from lab.config import EngineConfig, SamplingParams
from lab.trace.events import Event
from visualize.jobs.job_queue import TICK, JobQueue, QueuedJob, before_yours
from visualize.jobs.reducer_process import ComparingReducer, ReducerClient
from visualize.jobs.sse_channel import Channel
from visualize.reduce.frames import Reducer
from visualize.reduce.metric_cards import Before
from visualize.reduce.ndjson import line
from visualize.run_settings import LABELS, LINK, Settings, bounded

log = logging.getLogger(__name__)

EAGER = 0.02
"""Seconds between polls until there is news; doubled with each piece of news, up to ``TICK``."""
ABSENT = 60.0
"""Seconds after which a run that nobody reads is cancelled: a page that is open, or comes back, reads its channel."""


class Streams(Protocol):
    """The part of an engine that is needed here."""

    def default_num_blocks(self, config: EngineConfig) -> int: ...

    def models(self, config: EngineConfig) -> object: ...

    @property
    def wait_reason(self) -> str: ...

    def place_in_queue(self, cancelled: threading.Event) -> int | None: ...

    def stream(
        self, prompt: str, config: EngineConfig, sampling: SamplingParams, *, cancelled: threading.Event
    ) -> Iterator[Event]: ...


Reduce = Callable[[Sequence[Any]], Iterable[str]]
"""Turns new events, in order, into the transcript lines that they complete."""


class LiveJob(QueuedJob):
    """Something decoded when its turn comes. ``events`` only grows; ``done`` is set after the last one. What
    ``reducer`` makes of them goes into ``channel``."""

    _alone = True
    """Whether it measures something that other runs would spoil."""

    def __init__(self, queue: JobQueue, load: Callable[[str], Any], reducer: ComparingReducer) -> None:
        self.channel = Channel()
        self.events: list[Any] = []
        self._reducer = reducer
        self._after: Any = None
        super().__init__(queue, load)
        threading.Thread(target=self._tell, name="decode-lab-tell", daemon=True).start()

    @property
    def goes_on(self) -> bool:
        """Whether it is neither reported to its end nor cancelled."""
        return not self.channel.closed and not self.cancelled.is_set()

    @property
    def id(self) -> str:
        return self.channel.id

    @property
    def deserted(self) -> bool:
        """Whether it is over and no page ever read it."""
        return self.channel.closed and self.channel.never_heard and self.channel.unheard > ABSENT

    def after(self) -> Any:
        """What the visitor's next run is compared with."""
        return self._after

    @abstractmethod
    def _decode(self) -> Iterator[Any]:
        """The events as they come."""

    def _work(self) -> None:
        with self.turn(alone=self._alone):
            if not self.cancelled.is_set():
                for event in self._decode():
                    self.events.append(event)

    def _tell(self) -> None:
        try:
            reducer = ReducerClient(self._reducer)
            for news in transcript(self, reducer.feed):
                self.channel.put(news)
            self._after = reducer.after()
        except Exception as error:
            log.exception("a run could not be told")
            self.cancelled.set()
            problem = f"The run was stopped, because it could not be shown ({error})."
            self.channel.put(line({"problem": problem}))
        finally:
            self.channel.close()


class LiveRun(LiveJob):
    """One run in progress: a prompt and its events. In a workshop it shares the engine's steps and blocks."""

    _alone = False

    def __init__(
        self, queue: JobQueue, load: Callable[[str], Streams], settings: Settings, before: Before | None = None
    ) -> None:
        self._settings = settings
        super().__init__(queue, load, Reducer(before))

    def status(self) -> str:
        engine = self._engine  # its own thread drops it when it ends
        ahead = engine.place_in_queue(self.cancelled) if engine else None
        if ahead is None:
            return super().status()
        return f"Waiting for room in the pool: {before_yours(ahead) if ahead else 'you are next.'}"

    def _decode(self) -> Iterator[Event]:
        settings = self._settings
        LINK.check(vars(settings), LABELS)  # what the page accepts, a link to it must be able to say
        settings.engine_config()  # refuses a combination that makes no sense before any model is loaded
        prompt = bounded(settings.prompt)
        sampling = settings.sampling()
        engine: Streams = self.engine(settings.models())
        config = settings.engine_config(num_blocks=_pool(engine, settings))
        self.compile(engine, [config])
        if not self.cancelled.is_set():
            yield from engine.stream(prompt, config, sampling, cancelled=self.cancelled)


def transcript(run: LiveJob, reduce: Reduce) -> Iterator[str]:
    """The run's transcript (``visualize.reduce.ndjson``) in portions, as it grows, to its end."""
    seen, shown, wait = 0, "", EAGER
    over, due = False, time.monotonic()
    while not over:
        due = max(due + wait, time.monotonic())  # a poll's own time is not added to the wait
        over = run.done.wait(due - time.monotonic())  # checked first, so that nothing before ``done`` is missed
        if run.channel.unheard > ABSENT:
            run.cancelled.set()
        events = run.events[seen:]
        seen += len(events)
        if events and (news := "".join(reduce(events))):
            yield news
            wait = min(2 * wait, TICK)
        elif (status := run.status()) != shown:
            shown = status
            yield line({"status": status})
    if run.problem:
        yield line({"problem": run.problem})
    elif not run.events:
        yield line({"stopped": "Stopped before it began."})


def _pool(engine: Streams, settings: Settings) -> int | None:
    """Blocks in the pool: the number set, few enough for each to be seen, but no more than fit in memory."""
    blocks = settings.blocks
    return blocks and min(blocks, engine.default_num_blocks(settings.engine_config()))
