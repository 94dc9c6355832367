"""A run in a thread of its own, and another that tells of it.

The engine must not wait for whoever watches: its thread only appends events to a
list. The other looks ten times a second, reduces what is new and puts it into a channel.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from lab.config import EngineConfig, LabError, SamplingParams
from lab.trace.events import Event
from visualize.channel import Channel
from visualize.frames import Frame, Reducer
from visualize.readouts import Before
from visualize.settings import Settings
from visualize.transcript import line

log = logging.getLogger(__name__)

TICK = 0.1
"""Seconds between looks: ten updates a second is what a browser draws without falling behind."""
EAGER = 0.02
"""The same until the first token is there."""


class Streams(Protocol):
    """What is needed of an engine here."""

    context_length: int

    def default_num_blocks(self, config: EngineConfig) -> int: ...

    def stream(
        self, prompt: str, config: EngineConfig, sampling: SamplingParams, *, cancelled: threading.Event
    ) -> Iterator[Event]: ...


class Line:
    """Runs take turns in the order they came: two at once would spoil each other's timings."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[object] = []

    def ahead(self, who: object) -> int:
        """Runs before this one, the one under way included."""
        with self._changed:
            return self._waiting.index(who) if who in self._waiting else 0

    @contextmanager
    def turn(self, who: object, cancelled: threading.Event) -> Iterator[None]:
        """Wait to be first, or until cancelled."""
        with self._changed:
            self._waiting.append(who)
            while self._waiting[0] is not who and not cancelled.is_set():
                self._changed.wait(TICK)
        try:
            yield
        finally:
            with self._changed:
                self._waiting.remove(who)
                self._changed.notify_all()


class Reduces(Protocol):
    """What is needed of a reducer here."""

    def feed(self, events: Iterable[Any]) -> list[Frame]: ...

    def after(self) -> Any: ...


class Live(ABC):
    """Something decoded in a thread of its own, when its turn comes. ``events`` only grows; ``done`` is set after the
    last one. What ``reducer`` makes of them is told in ``channel``."""

    def __init__(self, line: Line, load: Callable[[str], Any], reducer: Reduces) -> None:
        self.channel = Channel()
        self.events: list[Any] = []
        self.problem = ""
        self.done = threading.Event()
        self.cancelled = threading.Event()
        self._line, self._load, self._reducer = line, load, reducer
        self._loading = False
        threading.Thread(target=self._work, name="decode-lab-run", daemon=True).start()
        threading.Thread(target=self._tell, name="decode-lab-tell", daemon=True).start()

    @property
    def id(self) -> str:
        return self.channel.id

    def status(self) -> str:
        """Why there is nothing to see yet."""
        if self._loading:
            return "Loading the models …"
        ahead = self._line.ahead(self)
        return f"Waiting: {ahead} {'run is' if ahead == 1 else 'runs are'} before yours." if ahead else ""

    def after(self) -> Any:
        """What the visitor's next run is compared with."""
        return self._reducer.after()

    def engine(self, pair: str) -> Any:
        """The engine of a model pair, loaded if it must be."""
        self._loading = True
        engine = self._load(pair)
        self._loading = False
        return engine

    @abstractmethod
    def _decode(self) -> Iterator[Any]:
        """The events as they come. May raise; ends soon after ``cancelled`` is set."""

    def _work(self) -> None:
        try:
            with self._line.turn(self, self.cancelled):
                if not self.cancelled.is_set():
                    for event in self._decode():
                        self.events.append(event)
        except LabError as error:
            self.problem = str(error)
        except Exception as error:
            log.exception("a run could not be started")
            self.problem = f"The run could not be started ({type(error).__name__}: {error})."
        finally:
            self.done.set()

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
    """One run under way: a prompt and its events."""

    def __init__(
        self, line: Line, load: Callable[[str], Streams], settings: Settings, before: Before | None = None
    ) -> None:
        self._settings = settings
        super().__init__(line, load, Reducer(before))

    def _decode(self) -> Iterator[Event]:
        settings = self._settings
        settings.engine_config()  # a senseless combination is refused before any model is loaded
        sampling = settings.sampling()
        engine: Streams = self.engine(settings.pair)
        config = settings.engine_config(num_blocks=_pool(engine, settings))
        yield from engine.stream(settings.prompt, config, sampling, cancelled=self.cancelled)


def transcript(run: Live, reducer: Reduces) -> Iterator[str]:
    """The run's transcript (``visualize.transcript``) as it grows, to its end: what is new."""
    seen, shown, wait = 0, "", EAGER
    over = False
    while not over:
        over = run.done.wait(wait)  # asked first: what is appended before ``done`` is then surely seen
        events = run.events[seen:]
        seen += len(events)
        frames = reducer.feed(events)
        if frames:
            yield "".join(map(line, frames))
            if any("tokens" in frame for frame in frames):
                wait = TICK
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
