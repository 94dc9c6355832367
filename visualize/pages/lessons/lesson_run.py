"""A lesson's preset being measured, with its progress."""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext

from lab.trace.events import Event, RunStarted
from lessons.experiments import Preset
from lessons.experiments.base import Experiment, Measured
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.live_run import ProgressJob, Record
from visualize.reduce.block_map import BlockMap


class LessonRun(ProgressJob):
    """Every experiment of a preset, one after another. ``measured`` by kind, complete when ``whole``."""

    def __init__(self, queue: JobQueue, load: Load, preset: Preset, *, careful: bool = False) -> None:
        self._preset = preset.careful() if careful else preset
        self._now, self._share, self._at = "", 0.0, 0
        self._happened: deque[tuple[int, Event]] = deque()
        self._blocks: BlockMap | None = None
        self.measured: dict[str, Measured] = {}
        super().__init__(queue, load)

    @property
    def whole(self) -> bool:
        return self.done.is_set() and not self.problem and len(self.measured) == len(self._preset.experiments)

    def _work(self) -> None:
        if self._preset.timed:
            with self.turn():
                self.look(self.engine("matched"))
        for name, experiment in self._preset.experiments.items():
            found = self._done(experiment)
            if found is None or self.cancelled.is_set():
                return
            self.measured[name] = found
            self._at, self._share = self._at + 1, 0.0

    def _done(self, experiment: Experiment) -> Measured | None:
        """One experiment, in a turn for each portion of it, unless it is arithmetic. None: cancelled."""
        work = experiment.work(self.engine, self.cancelled, self._watch)
        while not self.cancelled.is_set():
            with nullcontext() if experiment.arithmetic else self.turn():
                if self.cancelled.is_set():
                    return None
                try:
                    next(work)
                except StopIteration as end:
                    return end.value
        return None

    def _watch(self, words: str, share: float, *events: tuple[int, Event]) -> None:
        self._now, self._share = words, share
        self._happened.extend(events)

    def _pool(self) -> Record | None:
        """The blocks of the cache in use, brought up to date. Each first sequence's start begins another cache."""
        while self._happened:
            owner, event = self._happened.popleft()
            if isinstance(event, RunStarted) and owner == 0:
                size = event.config["block_size"]
                self._blocks = BlockMap(event.num_blocks, size, alone="batches" not in self._preset.experiments)
            if self._blocks:
                self._blocks.take(owner, event)
        if not (self._blocks and self._blocks.num_blocks):
            return None
        self._blocks.patches()
        [rows] = self._blocks.columns()
        return {"rows": rows, "size": self._blocks.block_size, "caption": self._blocks.caption()}

    def record(self) -> Record:
        """The progress. ``share``: of the whole, with equal weight for each experiment."""
        over = self.done.is_set()
        if over and self.problem:
            return {"running": False, "problem": self.problem} | self.gate
        if over:
            return {"running": False, "progress": "" if self.whole else "Stopped. Nothing was kept."} | self.gate
        share = self.share((self._at + self._share) / len(self._preset.experiments))
        progress = self.status() or self._now or "Getting ready …"
        return {"running": True, "progress": progress, "pool": self._pool()} | share | self.gate
