"""What the parts read from a run."""

from __future__ import annotations

from collections.abc import Iterable

from lab.config import LabError
from lab.trace.events import FellBack, StepTimed
from lab.trace.recorder import Run


def steps(run: Run, kind: str) -> list[StepTimed]:
    return [event for event in run.events if isinstance(event, StepTimed) and event.step_kind == kind]


def refuse_failures(runs: Iterable[Run]) -> None:
    """Raises LabError if a run failed, or gave up part of what was to be measured."""
    for run in runs:
        fallen = next((event for event in run.events if isinstance(event, FellBack)), None)
        if fallen:
            raise LabError(f"it went on without its {fallen.part}: {fallen.reason}")
        if run.reason == "error":
            raise LabError(run.finished.message)
