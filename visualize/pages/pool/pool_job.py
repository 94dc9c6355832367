"""A run of many sequences in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator

from lab.measure.throughput import arrivals
from lab.trace.recorder import BatchStep
from visualize.jobs.job_queue import JobQueue, Load
from visualize.jobs.live_run import LiveJob
from visualize.pages.pool.pool_frames import BatchReducer
from visualize.pages.pool.pool_metrics import PreviousPoolRun
from visualize.pool_inputs import PoolInputs


class BatchRun(LiveJob):
    """One such run; its ``events`` are steps."""

    def __init__(self, queue: JobQueue, load: Load, inputs: PoolInputs, before: PreviousPoolRun | None = None) -> None:
        self._inputs = inputs
        super().__init__(queue, load, BatchReducer(inputs.sequences, inputs.asked(), before))

    def _decode(self) -> Iterator[BatchStep]:
        inputs = self._inputs
        config, jobs = inputs.config(), inputs.jobs()  # what makes no sense is refused before any model is loaded
        yield from arrivals(
            self.engine("matched"),
            jobs,
            config,
            every=inputs.every,
            max_num_seqs=inputs.max_num_seqs,
            cancelled=self.cancelled,
        )
