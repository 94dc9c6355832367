"""A run in a thread of its own, and another that tells of it.

The engine must not wait for whoever watches: its thread only appends events to a
list. The other looks ten times a second, reduces what is new and puts it into a channel.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from lab.config import EngineConfig, SamplingParams
from lab.trace.events import Event
from visualize.channel import Channel
from visualize.frames import Reducer
from visualize.readouts import Before
from visualize.settings import Settings
from visualize.transcript import Reduces, line
from visualize.work import TICK, Line, Work, before_yours

log = logging.getLogger(__name__)

EAGER = 0.02
"""Seconds from one look to the next until the first token is there; then ``TICK``."""


class Streams(Protocol):
    """What is needed of an engine here."""

    context_length: int

    def default_num_blocks(self, config: EngineConfig) -> int: ...

    def models(self, config: EngineConfig) -> object: ...

    def ahead(self, cancelled: threading.Event) -> int | None: ...

    def stream(
        self, prompt: str, config: EngineConfig, sampling: SamplingParams, *, cancelled: threading.Event
    ) -> Iterator[Event]: ...


class Compares(Reduces, Protocol):
    """A reducer that says what the next run is compared with."""

    def after(self) -> Any: ...


class Live(Work):
    """Something decoded when its turn comes. ``events`` only grows; ``done`` is set after the last one. What
    ``reducer`` makes of them is told in ``channel``."""

    _alone = True
    """Whether it measures something that company would spoil."""

    def __init__(self, line: Line, load: Callable[[str], Any], reducer: Compares) -> None:
        self.channel = Channel()
        self.events: list[Any] = []
        self._reducer = reducer
        super().__init__(line, load)
        threading.Thread(target=self._tell, name="decode-lab-tell", daemon=True).start()

    @property
    def goes_on(self) -> bool:
        """Neither told to its end nor about to be."""
        return not self.channel.closed and not self.cancelled.is_set()

    @property
    def id(self) -> str:
        return self.channel.id

    def after(self) -> Any:
        """What the visitor's next run is compared with."""
        return self._reducer.after()

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
            for news in transcript(self, self._reducer):
                self.channel.put(news)
        except Exception as error:
            log.exception("a run could not be told")
            self.cancelled.set()
            problem = f"The run was stopped, because it could not be shown ({type(error).__name__}: {error})."
            self.channel.put(line({"problem": problem}))
        finally:
            self.channel.close()


class LiveRun(Live):
    """One run under way: a prompt and its events. In a workshop it shares the engine's steps and blocks."""

    _alone = False

    def __init__(
        self, line: Line, load: Callable[[str], Streams], settings: Settings, before: Before | None = None
    ) -> None:
        self._settings = settings
        self._engine: Streams | None = None
        super().__init__(line, load, Reducer(before))

    def status(self) -> str:
        ahead = self._engine.ahead(self.cancelled) if self._engine else None
        if ahead is None:
            return super().status()
        return f"Waiting for room in the pool: {before_yours(ahead) if ahead else 'you are next.'}"

    def _decode(self) -> Iterator[Event]:
        settings = self._settings
        settings.engine_config()  # a senseless combination is refused before any model is loaded
        sampling = settings.sampling()
        engine: Streams = self.engine(settings.models())
        self._engine = engine
        config = settings.engine_config(num_blocks=_pool(engine, settings))
        self.compile(engine, [config])
        if not self.cancelled.is_set():
            yield from engine.stream(settings.prompt, config, sampling, cancelled=self.cancelled)


def transcript(run: Live, reducer: Reduces) -> Iterator[str]:
    """The run's transcript (``visualize.transcript``) as it grows, to its end: what is new."""
    seen, shown, wait = 0, "", EAGER
    over, due = False, time.monotonic()
    while not over:
        due = max(due + wait, time.monotonic())  # what a look takes is not added to the wait
        over = run.done.wait(due - time.monotonic())  # asked first: what came before ``done`` is then surely seen
        events = run.events[seen:]
        seen += len(events)
        lines = []
        for event in events:
            for frame in reducer.feed((event,)):
                lines.append(line(frame))
                wait = TICK if "tokens" in frame else wait
                # Python runs one thread at a time and changes over after 5 ms: an engine that is back from a step in C
                # would wait for all these frames. So whoever waits for its turn gets it.
                time.sleep(0)
        if lines:
            yield "".join(lines)
        elif (status := run.status()) != shown:
            shown = status
            yield line({"status": status})
    if run.problem or not run.events:
        yield line({"problem": run.problem or "Stopped before it began."})


def _pool(engine: Streams, settings: Settings) -> int | None:
    """So few blocks that each can be seen, and no more than there is memory for."""
    if not settings.cache:
        return None
    return min(settings.pool_size // settings.block_size, engine.default_num_blocks(settings.engine_config()))
