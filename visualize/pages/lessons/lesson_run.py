"""A lesson's preset being measured, with its progress."""

from __future__ import annotations

from lessons.experiments import Preset
from lessons.experiments.base import Experiment, Measured
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.live_run import ProgressJob, Record


class LessonRun(ProgressJob):
    """Every experiment of a preset, one after another. ``measured`` by kind, complete when ``whole``."""

    def __init__(self, queue: JobQueue, load: Load, preset: Preset) -> None:
        self._preset = preset
        self._now, self._share, self._at = "", 0.0, 0
        self.measured: dict[str, Measured] = {}
        super().__init__(queue, load)

    @property
    def whole(self) -> bool:
        return self.done.is_set() and not self.problem and len(self.measured) == len(self._preset.experiments)

    def _work(self) -> None:
        for name, experiment in self._preset.experiments.items():
            found = self._done(experiment)
            if found is None or self.cancelled.is_set():
                return
            self.measured[name] = found
            self._at, self._share = self._at + 1, 0.0

    def _done(self, experiment: Experiment) -> Measured | None:
        """One experiment, in a turn for each portion of it. None: cancelled."""
        work = experiment.work(self.engine, self.cancelled, self._watch)
        while not self.cancelled.is_set():
            with self.turn():
                if self.cancelled.is_set():
                    return None
                try:
                    next(work)
                except StopIteration as end:
                    return end.value
        return None

    def _watch(self, words: str, share: float) -> None:
        self._now, self._share = words, share

    def record(self) -> Record:
        """The progress. ``share``: of the whole, with equal weight for each experiment."""
        over = self.done.is_set()
        if over and self.problem:
            return {"running": False, "problem": self.problem}
        if over:
            return {"running": False, "progress": "" if self.whole else "Stopped. Nothing was kept."}
        share = (self._at + self._share) / len(self._preset.experiments)
        return {"running": True, "progress": self.status() or self._now or "Getting ready …", "share": share}
