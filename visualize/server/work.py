"""Work for visitors, each in a thread of its own, one after another: there is one machine. A workshop shares turns."""

from __future__ import annotations

import contextvars
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from lab.config import EngineConfig, LabError
from lab.decode.engine import Engine
from lab.engines import Pair
from lab.pair.progress import Loading, watched
from visualize.server.compiling import Compiles, compiling

log = logging.getLogger(__name__)

TICK = 0.09
"""Seconds from one look to the next: of eleven updates a second a browser draws ten and does not fall behind."""

Load = Callable[[str | Pair], Engine]
"""The engine of a model pair, or of a pair's name. It may take seconds, and raise."""


CLOSED = "The server is shutting down. Nothing more will come."


class FullError(LabError):
    """As many visitors as the server takes have something under way."""


class Line:
    """Turns are taken in the order of coming: two at once would spoil each other's timings.

    Args:
        most: visitors who may have something under way, waiting for a turn included. None: any number.
        together: those who need not be alone share a turn, as far as nobody between them must be.
    """

    def __init__(self, most: int | None = None, *, together: bool = False) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[object, bool] = {}  # those under way included; whether each must be alone
        self._inside: list[Work] = []
        self._most, self._together, self._closed = most, together, False

    @property
    def inside(self) -> int:
        """Visitors who have something under way, waiting for a turn included."""
        return len(self._inside)

    @property
    def closed(self) -> bool:
        """Nothing begins any more: the server ends."""
        return self._closed

    @contextmanager
    def visit(self, work: Work) -> Iterator[None]:
        """Be one of those who have something under way, from the first turn to the last.

        Raises:
            FullError: there are as many as may be, or the line was closed.
        """
        with self._changed:
            if self._closed:
                raise FullError(CLOSED)
            if self._most is not None and self.inside >= self._most:
                raise FullError(
                    f"The lab is full: {self.inside} visitors have a run under way or wait for one, and it takes no "
                    "more at once. Try again in a minute. Nothing is lost: your settings stay, runs that you saved can "
                    "be opened, and the Memory page answers."
                )
            self._inside.append(work)
        try:
            yield
        finally:
            with self._changed:
                self._inside.remove(work)
                self._changed.notify_all()

    def close(self, seconds: float) -> bool:
        """End everything that is under way, and let nothing begin any more.

        Returns:
            Whether all of it was over within ``seconds``.
        """
        with self._changed:
            self._closed = True
            for work in self._inside:
                work.problem = CLOSED
                work.cancelled.set()
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._inside, seconds)

    def ahead(self, who: object) -> int:
        """How many it waits for, those under way included."""
        with self._changed:
            return self._ahead(who)

    def _ahead(self, who: object) -> int:
        if who not in self._waiting:
            return 0
        order = list(self._waiting)
        before = order[: order.index(who)]
        share = not any(self._waiting[one] for one in (*before, who))
        return 0 if share else len(before)

    @contextmanager
    def turn(self, who: object, cancelled: threading.Event, *, alone: bool = True) -> Iterator[None]:
        """Wait for a turn, or until cancelled. ``alone``: what is measured in it is not to be spoiled."""
        with self._changed:
            self._waiting[who] = alone or not self._together
            while self._ahead(who) and not cancelled.is_set():
                self._changed.wait(TICK)
        try:
            yield
        finally:
            with self._changed:
                del self._waiting[who]
                self._changed.notify_all()


class Work(ABC):
    """Begins when it is made. ``done`` is set after the last of it, ``cancelled`` ends it early; ``problem``: why it
    broke off, in a sentence."""

    def __init__(self, line: Line, load: Callable[[str], Any]) -> None:
        self.problem = ""
        self.done = threading.Event()
        self.cancelled = threading.Event()
        self._line, self._load = line, load
        self._loading: Loading | None = None
        self._engine: Any = None
        self._compiling = ""
        own = contextvars.copy_context()  # of the visitor's request: a ZeroGPU Space asks whose it is
        threading.Thread(target=own.run, args=(self._run,), name="decode-lab-work", daemon=True).start()

    @property
    def goes_on(self) -> bool:
        """Neither over nor about to be."""
        return not self.done.is_set() and not self.cancelled.is_set()

    def status(self) -> str:
        """Why nothing goes on; empty if it does."""
        if loading := self._loading:
            return loading.status() or "Loading the models …"
        if self._compiling:
            return self._compiling
        if ahead := self._line.ahead(self):
            return f"Waiting: {before_yours(ahead)}"
        captured = self._engine and self._engine.capturing
        return f"Capturing a CUDA graph, once for steps like this one: {captured} …" if captured else ""

    def engine(self, pair: str | Pair) -> Any:
        """The engine of a model pair, loaded if it must be."""
        self._loading = Loading(self.cancelled)
        try:
            with watched(self._loading):
                self._engine = self._load(pair)
            return self._engine
        finally:
            self._loading = None

    def compile(self, engine: Compiles, configs: Iterable[EngineConfig]) -> None:
        """Wait until the layers are compiled that some of ``configs`` ask for, or until it is cancelled."""
        for status in compiling(engine, configs, self.cancelled):
            self._compiling = status
        self._compiling = ""

    def turn(self, *, alone: bool = True) -> AbstractContextManager[None]:
        """Its turn (``Line.turn``), which comes at once when it is cancelled, though another may be at work."""
        return self._line.turn(self, self.cancelled, alone=alone)

    @abstractmethod
    def _work(self) -> None:
        """All of it. May raise; ends soon after ``cancelled`` is set."""

    def _run(self) -> None:
        try:
            with self._line.visit(self):
                self._work()
        except LabError as error:
            self.problem = self.problem or str(error)  # what ended it is told, not what that led to
        except Exception as error:
            log.exception("work for a visitor broke off")
            self.problem = f"This failed ({type(error).__name__}: {error})."
        finally:
            self.done.set()


def before_yours(ahead: int) -> str:
    """How long somebody waits, in the only unit that is known."""
    return f"{ahead} {'run is' if ahead == 1 else 'runs are'} before yours."
