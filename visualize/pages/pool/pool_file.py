"""A run of many sequences as a file: all events in order, each with its step, its owner and the time on the clock that
all sequences share."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from lab.trace.events import RunStarted
from lab.trace.json_codec import dump_json, from_dict, to_dict
from lab.trace.recorder import BatchEvent, BatchStep
from lab.trace.run import RunFileError
from visualize.pages.pool.pool_frames import BatchReducer
from visualize.pool_inputs import FORM
from visualize.reduce.frames import reduced

FORMAT, VERSION = "decode-lab-pool", 1


def as_json(steps: Sequence[BatchStep]) -> str:
    """The text of the file."""
    records = [
        {"step": number, "owner": entry.owner, "clock_ms": entry.t_ms, "event": to_dict(entry.event)}
        for number, step in enumerate(steps)
        for entry in step.entries
    ]
    return dump_json({"format": FORMAT, "version": VERSION, "entries": records})


def of(document: Any, name: str) -> list[BatchStep]:
    """The steps in a ``document`` that ``as_json`` wrote, parsed from a file of that ``name``.

    Raises:
        RunFileError: it is not such a file, has another version, is damaged, or is larger than the page allows.
    """
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RunFileError(f"{name} is not a run of the pool: its format is not {FORMAT!r}. The Lab opens single runs.")
    if document.get("version") != VERSION:
        raise RunFileError(f"{name} has version {document.get('version')!r}; this lab reads {VERSION}.")
    try:
        entries = [(int(record["step"]), _entry(record)) for record in document["entries"]]
        _refuse_impossible([entry for _, entry in entries])
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise RunFileError(f"{name} is damaged: {str(error)[:160]}") from error
    steps = [
        BatchStep([entry for _, entry in some], last=False) for _, some in groupby(entries, key=lambda pair: pair[0])
    ]
    return [*steps[:-1], BatchStep(steps[-1].entries, last=True)]


def transcript(steps: Sequence[BatchStep], id: str) -> str:
    """The transcript of a run from a file. Raises RunFileError if its events contradict each other."""
    owners = {entry.owner for step in steps for entry in step.entries}
    return reduced(BatchReducer(len(owners), recorded=True), steps, id)


def _entry(record: Any) -> BatchEvent:
    clock, owner = record["clock_ms"], record["owner"]
    if not isinstance(clock, (int, float)) or not math.isfinite(clock):
        raise ValueError(f"clock_ms must be a number of milliseconds, not {str(clock)[:40]}")
    if not isinstance(owner, int):
        raise ValueError(f"owner must be a sequence's number, not {str(owner)[:40]}")
    return BatchEvent(clock, owner, from_dict(record["event"]))


def _refuse_impossible(entries: Sequence[BatchEvent]) -> None:
    """Raises ValueError for a run that the page could not have made, or that would take long to draw."""
    owners = list(dict.fromkeys(entry.owner for entry in entries))
    begun = [entry for entry in entries if isinstance(entry.event, RunStarted)]
    if not entries or owners != list(range(len(owners))) or [entry.owner for entry in begun] != owners:
        raise ValueError("its sequences are not numbered in the order in which they began")
    most, blocks = (int(FORM[name].bounds[1]) for name in ("sequences", "num_blocks"))
    if len(owners) > most or not all(0 < entry.event.num_blocks <= blocks for entry in begun):
        raise ValueError(f"it has more than {most} sequences or {blocks} blocks")
