"""A batch run saved to a file and opened again."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from lab.measure.workload import PlannedRequest
from lab.trace.recorder import BatchStep
from lab.trace.run import RunFileError, read_json
from tests.visualize.crowd import job, ran, runs
from visualize.pages.pool.pool_file import as_json, of, transcript
from visualize.pages.pool.pool_frames import BatchReducer


def opened(path: Path) -> list[BatchStep]:
    return of(read_json(path), path.name)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(run=runs())
def test_the_file_holds_every_event_with_its_step_owner_and_clock(
    tmp_path_factory: pytest.TempPathFactory, run: tuple[list[PlannedRequest], list[BatchStep], int]
) -> None:
    _, steps, _ = run
    path = tmp_path_factory.getbasetemp() / "pool.json"
    path.write_text(as_json(steps), "utf-8")
    again = opened(path)
    assert [step.entries for step in again] == [step.entries for step in steps if step.entries]
    head, *frames = map(json.loads, transcript(again, "x").splitlines())
    assert head == {"run": "x"}
    assert frames[0]["head"].pop("recorded") is True
    assert frames[0]["head"]["accelerator"] == "cpu"
    expected = json.loads(json.dumps(BatchReducer(frames[0]["head"]["expected"]).feed(again)))
    assert expected[0]["head"].pop("recorded") is False
    assert frames == expected


DOCUMENT = json.loads(as_json(ran([job("ab", 4, i) for i in range(2)])))


def changed(**changes: Any) -> dict[str, Any]:
    """The document with changes to its first entry, or to the event in it."""
    document = copy.deepcopy(DOCUMENT)
    first = document["entries"][0]
    for name, value in changes.items():
        (first if name in first else first["event"])[name] = value
    return document


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "is not a run of the pool"),
        ({"format": "decode-lab-run", "version": 1, "events": []}, "The Lab opens single runs"),
        (DOCUMENT | {"version": 9}, "has version 9"),
        (DOCUMENT | {"entries": 3}, "is damaged"),
        (DOCUMENT | {"entries": [[]]}, "is damaged"),
        (DOCUMENT | {"entries": DOCUMENT["entries"][1:]}, "not numbered in the order"),
        (changed(clock_ms=float("nan")), "clock_ms must be a number"),
        (changed(clock_ms=10**400), "is damaged"),
        (DOCUMENT | {"entries": [e | {"owner": e["owner"] + 5} for e in DOCUMENT["entries"]]}, "not numbered"),
        (changed(owner="0"), "owner must be a sequence's number"),
        (changed(event={"kind": "x"}), "not an event"),
        (changed(num_blocks=10**9), "1024 blocks"),
        (changed(step=float("inf")), "is damaged"),
    ],
)
def test_an_invalid_file_is_refused_with_an_explanation(tmp_path: Path, document: Any, said: str) -> None:
    path = tmp_path / "pool.json"
    path.write_text(json.dumps(document), "utf-8")
    with pytest.raises(RunFileError, match=said):
        opened(path)


def test_events_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    entries = [entry for entry in DOCUMENT["entries"] if entry["event"]["kind"] != "block_allocated"]
    path.write_text(json.dumps(DOCUMENT | {"entries": entries}), "utf-8")
    with pytest.raises(RunFileError, match="contradict each other"):
        transcript(opened(path), "x")


KINDS = {entry["event"]["kind"]: index for index, entry in reversed(list(enumerate(DOCUMENT["entries"])))}


@pytest.mark.parametrize("value", [10**15, -(10**15), 10**300])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_in_any_field_is_shown_or_refused(tmp_path: Path, kind: str, value: int) -> None:
    path = tmp_path / "pool.json"
    entry = DOCUMENT["entries"][KINDS[kind]]
    for field, usual in entry["event"].items():
        if type(usual) is not int:
            continue
        document = copy.deepcopy(DOCUMENT)
        document["entries"][KINDS[kind]]["event"][field] = value
        path.write_text(json.dumps(document), "utf-8")
        with suppress(RunFileError):  # refused with an explanation
            assert transcript(opened(path), "x")
