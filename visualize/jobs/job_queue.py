"""Work for visitors, each in its own thread, taking turns because there is one machine. A workshop shares turns."""

import contextvars
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from lab.config import EngineConfig
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.models.load_progress import Loading, track_loading
from lab.registry import Pair
from lab.util.background import POLL_SECONDS, in_background
from lab.util.messages import counted

log = logging.getLogger(__name__)

TICK = 0.09
"""Seconds between polls: of eleven updates per second, a browser draws ten without falling behind."""

Load = Callable[[str | Pair], Engine]
"""Returns the engine of a model pair, or of a pair's name. May take seconds, and may raise."""


CLOSED = "The server is shutting down. Nothing more will come."


class FullError(LabError):
    """As many visitors as the server allows have work in progress, or it is shutting down."""


class JobQueue:
    """Turns in order of arrival: two at once would spoil each other's timings.

    Attributes:
        turns: how many turns have begun, those of work that was cancelled while it waited included.
        waited: seconds that all of them together were waited for.

    Args:
        most: how many may have work in progress, waiting for a turn included. None: any number.
        together: work shares a turn if neither it nor anything ahead of it must be alone.
    """

    def __init__(self, most: int | None = None, *, together: bool = False) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[object, bool] = {}  # including those in progress; whether each must be alone
        self._inside: list[QueuedJob] = []
        self._most, self._together, self._closed = most, together, False
        self.turns, self.waited = 0, 0.0

    @property
    def inside(self) -> int:
        """The number of jobs in progress, waiting for a turn included."""
        return len(self._inside)

    @property
    def waiting(self) -> int:
        """The number that waits for a turn."""
        with self._changed:
            return sum(self._ahead(who) > 0 for who in self._waiting)

    @property
    def closed(self) -> bool:
        """True when the server is shutting down, so that nothing new begins."""
        return self._closed

    @contextmanager
    def visit(self, work: "QueuedJob") -> Iterator[None]:
        """Count ``work`` as in progress, from its first turn to its last.

        Raises:
            FullError: the limit is reached, or the line is closed.
        """
        with self._changed:
            if self._closed:
                raise FullError(CLOSED)
            if self._most is not None and self.inside >= self._most:
                raise FullError(
                    f"The lab is full: {counted(self.inside, 'visitor')} {'has' if self.inside == 1 else 'have'} a run "
                    "in progress or waiting. Try again in a minute. Nothing is lost: your settings stay, saved runs "
                    "can be opened, and the Memory page answers."
                )
            self._inside.append(work)
        try:
            yield
        finally:
            with self._changed:
                self._inside.remove(work)
                self._changed.notify_all()

    def close(self, seconds: float) -> bool:
        """End all work in progress, and let nothing new begin.

        Returns:
            Whether all of it ended within ``seconds``.
        """
        with self._changed:
            self._closed = True
            for work in self._inside:
                work.problem = CLOSED
                work.cancelled.set()
            return self._changed.wait_for(lambda: not self._inside, seconds)

    def ahead(self, who: object) -> int:
        """The number that ``who`` waits for, including those in progress."""
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
        """Wait for a turn, or until cancelled. ``alone``: it must not be shared, because something is measured."""
        with self._changed:
            assert who not in self._waiting, "a turn within a turn would wait for itself"
            self._waiting[who] = alone or not self._together
            came = time.monotonic()
            while self._ahead(who) and not cancelled.is_set():
                self._changed.wait(TICK)
            self.turns += 1
            self.waited += time.monotonic() - came
        try:
            yield
        finally:
            with self._changed:
                del self._waiting[who]
                self._changed.notify_all()


class QueuedJob(ABC):
    """Work that begins on construction. ``done`` is set when it is over; setting ``cancelled`` ends it early;
    ``problem`` says in a sentence why it failed."""

    def __init__(self, queue: JobQueue, load: Callable[[str], Any]) -> None:
        self.problem = ""
        self.done = threading.Event()
        self.cancelled = threading.Event()
        self._queue, self._load = queue, load
        self._loading: Loading | None = None
        self._engine: Any = None
        self._compiling = ""
        own = contextvars.copy_context()  # of the visitor's request: a ZeroGPU Space asks whose it is
        threading.Thread(target=own.run, args=(self._run,), name="decode-lab-work", daemon=True).start()

    @property
    def goes_on(self) -> bool:
        """True if it is neither over nor cancelled."""
        return not self.done.is_set() and not self.cancelled.is_set()

    def status(self) -> str:
        """The reason why it waits, as a sentence; empty if it is running."""
        if loading := self._loading:
            return loading.status() or "Loading the models …"
        if self._compiling:
            return self._compiling
        if ahead := self._queue.ahead(self):
            return f"Waiting: {before_yours(ahead)}"
        engine = self._engine  # its own thread drops it when it ends
        awaited = engine and engine.wait_reason
        return f"Waiting for {awaited} …" if awaited else ""

    @property
    def loaded(self) -> float | None:
        """The share of a model that is fetched or loaded, while one is."""
        loading = self._loading  # its own thread drops it when it ends
        return loading.share if loading else None

    def engine(self, pair: str | Pair) -> Any:
        """The engine of a model pair, loaded if necessary."""
        self._loading = Loading(self.cancelled)
        try:
            with track_loading(self._loading):
                self._engine = self._load(pair)
            return self._engine
        finally:
            self._loading = None

    def compile(self, engine: Any, configs: Iterable[EngineConfig]) -> None:
        """Wait until the layers are compiled, if any of ``configs`` asks for that, or until cancelled."""
        wanted = next((config for config in configs if config.torch_compile), None)
        if wanted is None:
            return
        began = time.monotonic()
        compiler = in_background(lambda: engine.models(wanted), "decode-lab-compiler")  # goes on when this is cancelled
        while not wait([compiler], POLL_SECONDS).done and not self.cancelled.is_set():
            self._compiling = f"Compiling the layers: {time.monotonic() - began:.0f} s so far …"
        self._compiling = ""
        if compiler.done():
            compiler.result()

    def turn(self, *, alone: bool = True) -> AbstractContextManager[None]:
        """Its turn (``JobQueue.turn``), which comes at once if it is cancelled, even while others are at work."""
        return self._queue.turn(self, self.cancelled, alone=alone)

    @abstractmethod
    def _work(self) -> None:
        """Do the work. May raise; ends soon after ``cancelled`` is set."""

    def _run(self) -> None:
        try:
            with self._queue.visit(self):
                self._work()
        except LabError as error:
            self.problem = self.problem or str(error)  # the cause, not what that led to
        except Exception as error:
            log.exception("work for a visitor broke off")
            self.problem = f"This failed ({type(error).__name__}: {error})."
        finally:
            self._engine = None  # this is kept for a visitor, and the memory of a pair is for the next one's
            self.done.set()


def before_yours(ahead: int) -> str:
    """The wait in the only unit that is known: runs."""
    return f"{ahead} {'run is' if ahead == 1 else 'runs are'} before yours."
