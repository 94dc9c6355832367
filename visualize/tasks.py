"""What the Compare page has measured: work in a thread of its own, told as it goes on.

A comparison is many runs. Each waits for its own turn, so that other visitors' runs come in between, not after
all of them.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lab.bench.compare import Turn, compare
from lab.bench.difference import first_differences
from lab.bench.growth import UNCACHED, measure_growth
from lab.config import LabError
from lab.decode.engine import Engine
from lab.trace.recorder import Run
from visualize import comparison, prediction
from visualize.lanes import Inputs
from visualize.live import TICK, Line

log = logging.getLogger(__name__)

Load = Callable[[str], Engine]
Record = dict[str, Any]


class Task(ABC):
    """Work under way for a visitor. ``done`` is set after the last of it, ``cancelled`` ends it early."""

    def __init__(self, line: Line, load: Load) -> None:
        self.problem = ""
        self.done = threading.Event()
        self.cancelled = threading.Event()
        self._line, self._load = line, load
        self._loading = False
        threading.Thread(target=self._run, name="decode-lab-task", daemon=True).start()

    @abstractmethod
    def record(self) -> Record:
        """What the page is to show now, JSON-ready."""

    @abstractmethod
    def _work(self) -> None:
        """All of it. May raise."""

    def _engine(self, pair: str) -> Engine:
        self._loading = True
        engine = self._load(pair)
        self._loading = False
        return engine

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._line.turn(self, self.cancelled):
            yield

    def _waiting(self) -> str:
        """Why nothing goes on; empty if it does."""
        if self._loading:
            return "Loading the models …"
        ahead = self._line.ahead(self)
        return f"Waiting: {ahead} {'run is' if ahead == 1 else 'runs are'} before yours." if ahead else ""

    def _run(self) -> None:
        try:
            self._work()
        except LabError as error:
            self.problem = str(error)
        except Exception as error:
            log.exception("a measurement broke off")
            self.problem = f"The measurement broke off ({type(error).__name__}: {error})."
        finally:
            self.done.set()


class Visitors:
    """Whose tasks are under way, by browser session."""

    def __init__(self) -> None:
        self._tasks: dict[str | None, list[Task]] = {}

    def follow(self, session: str | None, task: Task) -> Iterator[Record]:
        """Its record, whenever it has changed, to the last. Whoever stops listening has cancelled it."""
        mine = self._tasks.setdefault(session, [])
        mine.append(task)
        try:
            yield from follow(task)
        finally:  # also when the tab is closed; it runs on the server's event loop, so it only sets a flag
            task.cancelled.set()
            if task in mine:
                mine.remove(task)

    def stop(self, session: str | None) -> None:
        """Cancel what a visitor has under way."""
        for task in self._tasks.get(session, ()):
            task.cancelled.set()

    def leave(self, session: str | None) -> None:
        """A visitor has gone."""
        self.stop(session)
        self._tasks.pop(session, None)


def follow(task: Task) -> Iterator[Record]:
    """Its record, whenever it has changed, to the last."""
    shown, over = None, False
    while not over:
        over = task.done.wait(TICK)  # asked first: what is there before ``done`` is then surely told
        record = task.record()
        if record != shown:
            shown = record
            yield record


class Comparison(Task):
    """Settings compared on a prompt; ``runs`` are those that are over, by setting."""

    def __init__(self, line: Line, load: Load, inputs: Inputs) -> None:
        self.inputs = inputs
        self.runs: dict[str, list[Run]] = {}
        self._now: tuple[Turn, int] | None = None
        self._reading = False
        self._counted, self._so_far = 0, {}
        self._whole: Record = {}
        super().__init__(line, load)

    def _work(self) -> None:
        inputs = self.inputs
        configs, sampling = inputs.configs(), inputs.sampling()
        with self._turn():
            engine = self._engine(inputs.pair)
        steps = compare(
            engine,
            inputs.prompt,
            configs,
            sampling,
            inputs.repeats,
            cancelled=self.cancelled,
            watch=self._watch,
        )
        self.runs = {name: [] for name in configs}
        while True:
            with self._turn():  # comes at once when cancelled, though another may be at work
                step = None if self.cancelled.is_set() else next(steps, None)
            if step is None:
                break
            turn, run = step
            if turn.repeat:
                self.runs[turn.name].append(run)
        if all(self.runs.values()):
            partings = {}
            with self._turn():
                if not self.cancelled.is_set():
                    self._reading = True
                    partings = first_differences(engine, {name: some[0] for name, some in self.runs.items()})
            whole = comparison.whole(configs, self.runs, partings)
            self._whole = whole | {"theory": prediction.theory(configs, self.runs)}

    def _watch(self, turn: Turn, tokens: int) -> None:
        self._now = turn, tokens

    def record(self) -> Record:
        over = self.done.is_set()
        count = sum(map(len, self.runs.values()))
        if count != self._counted:
            self._counted, self._so_far = count, comparison.so_far(self.runs)
        record = self._so_far | {"running": not over, "progress": self._progress(over, count)}
        if over and self.problem:
            return record | {"problem": self.problem}
        return record | self._whole if over else record

    def _progress(self, over: bool, count: int) -> str:
        if over:
            if not self.cancelled.is_set():
                return ""
            wanted = self.inputs.repeats * len(self.runs)
            return f"Stopped after {count} of {wanted} runs." if count else "Stopped before a run was over."
        if waiting := self._waiting():
            return waiting
        if self._reading:
            return "Reading again how sure each was where outputs part …"
        if self._now is None:
            return "Getting ready …"
        turn, tokens = self._now
        of = f"warm-up of {turn.name}" if not turn.repeat else f"{turn.name}, repeat {turn.repeat}"
        return f"Run {turn.number} of {turn.of}: {of}, {tokens} tokens"


class Growth(Task):
    """Milliseconds a token by length, with and without a cache."""

    def __init__(self, line: Line, load: Load, inputs: Inputs) -> None:
        self.inputs = inputs
        self._now = ""
        self._whole: Record = {}
        super().__init__(line, load)

    def _work(self) -> None:
        curves = {}
        with self._turn():
            if not self.cancelled.is_set():
                curves = measure_growth(
                    self._engine(self.inputs.pair),
                    self.inputs.prompt,
                    prediction.GROWTH_TOKENS,
                    cancelled=self.cancelled,
                    watch=self._watch,
                )
        if curves:
            self._whole = prediction.growth(curves)

    def _watch(self, name: str, tokens: int) -> None:
        self._now = f"{name}{' a cache' * (name == UNCACHED)}: {tokens} of {prediction.GROWTH_TOKENS} tokens"

    def record(self) -> Record:
        over = self.done.is_set()
        if over and self.problem:
            return {"growth": {"running": False, "problem": self.problem}}
        if over:
            return {"growth": {"running": False, **(self._whole or {"progress": "Stopped."})}}
        return {"growth": {"running": True, "progress": self._waiting() or self._now or "Getting ready …"}}
