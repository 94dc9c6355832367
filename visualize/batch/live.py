"""A run of many sequences in a thread of its own, and all that was heard of it as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from lab.bench.arrivals import Step, arrivals
from lab.trace.events import to_dict
from visualize.batch.frames import BatchReducer
from visualize.batch.inputs import Inputs
from visualize.batch.readouts import Readings
from visualize.live import Live
from visualize.work import Line, Load

FORMAT, VERSION = "decode-lab-pool", 1


class BatchRun(Live):
    """``events`` are the steps."""

    def __init__(self, line: Line, load: Load, inputs: Inputs, before: Readings | None = None) -> None:
        self._inputs = inputs
        super().__init__(line, load, BatchReducer(inputs.sequences, before))

    def _decode(self) -> Iterator[Step]:
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


def as_json(steps: Sequence[Step]) -> str:
    """Every event of every sequence in the order in which they happened, each with its step, its owner, and the clock
    that all share."""
    records = [
        {"step": number, "owner": entry.owner, "clock_ms": entry.t_ms, "event": to_dict(entry.event)}
        for number, step in enumerate(steps)
        for entry in step.entries
    ]
    return json.dumps({"format": FORMAT, "version": VERSION, "entries": records}, ensure_ascii=False)
