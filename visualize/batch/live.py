"""A run of many sequences in a thread of its own, and all that was heard of it as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from lab.bench.arrivals import Step, arrivals
from lab.trace.events import to_dict
from visualize.batch.inputs import Inputs
from visualize.live import Line, Live
from visualize.tasks import Load


class BatchRun(Live):
    """``events`` are the steps."""

    def __init__(self, line: Line, load: Load, inputs: Inputs) -> None:
        self._inputs = inputs
        super().__init__(line, load)

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
    """Every event of every sequence in the order in which they happened, with its owner and the shared clock."""
    entries = [
        {"owner": entry.owner, "clock_ms": entry.t_ms, **to_dict(entry.event)}
        for step in steps
        for entry in step.entries
    ]
    return json.dumps({"format": "decode-lab-batch", "version": 1, "events": entries}, ensure_ascii=False)
