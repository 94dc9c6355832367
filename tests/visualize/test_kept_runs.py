"""Runs as stored by a browser: what is restored is the learner's run, or nothing."""

from __future__ import annotations

import base64
import functools
import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from lab import Engine, RunFileError, load_engine
from lessons.course import course
from lessons.experiments.base import Measured
from visualize.jobs.job_queue import JobQueue
from visualize.pages.lessons import learner as kept_runs
from visualize.pages.lessons.learner import Learner, packed, remembered, restored, unpacked
from visualize.pages.lessons.lesson_run import LessonRun
from visualize.pages.lessons.observation import seen

COSTS, LOSSLESS = 3, 9


@functools.cache
def load(pair: str) -> Engine:
    return load_engine(draft=pair)


@functools.cache
def measured(number: int) -> dict[str, Measured]:
    task = LessonRun(JobQueue(), load, course()[number].front.preset)
    list(task.records())
    assert task.whole
    return task.measured


def learner(number: int) -> Learner:
    found = Learner(2, {kind: one.figures for kind, one in measured(number).items()})
    return restored(course()[number], json.dumps(found.kept(course()[number])))  # through the browser and back


def text_of(document: Any) -> str:
    return base64.b64encode(gzip.compress(json.dumps(document).encode(), mtime=0)).decode()


@pytest.mark.slow
def test_a_restored_run_shows_the_same() -> None:
    lesson, found = course()[COSTS], measured(COSTS)
    before, after = seen(lesson, found), remembered(lesson, learner(COSTS), packed(found["runs"].runs))
    assert after == before
    assert after.played.token_ids


def test_a_lesson_without_recorded_runs_needs_none() -> None:
    lesson = course()[LOSSLESS]
    assert remembered(lesson, learner(LOSSLESS), "").panels == seen(lesson, measured(LOSSLESS)).panels
    assert remembered(lesson, Learner(2), "") is None


def test_runs_that_do_not_match_the_progress_are_ignored() -> None:
    mine, runs = learner(COSTS), measured(COSTS)["runs"].runs
    assert remembered(course()[COSTS], mine, packed(runs))
    native = dict(mine.figures["runs"]["native"]) | {"ttft_ms": [1.5]}
    other = mine.figures | {"runs": mine.figures["runs"] | {"native": native}}
    assert remembered(course()[COSTS], replace(mine, figures=other), packed(runs)) is None
    assert remembered(course()[COSTS], mine, packed(dict(list(runs.items())[:2]))) is None


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "x",
        "é" * 9,
        "x" * 2_000_000,
        text_of([]),
        text_of(3),
        text_of({"native": 3}),
        text_of({"native": [3], "int8": [], "int4": []}),
        text_of({"native": [{"format": "decode-lab-run", "version": 4, "events": [{"kind": "run_started"}]}]}),
        base64.b64encode(gzip.compress(b"[" * 100_000, mtime=0)).decode(),
        base64.b64encode(gzip.compress(b" " * (kept_runs.MOST_BYTES + 1), mtime=0)).decode(),
        text_of({})[:20],
    ],
)
def test_invalid_stored_runs_are_ignored(text: str | None) -> None:
    assert remembered(course()[COSTS], learner(COSTS), text) is None


def test_runs_too_large_to_store_are_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = measured(COSTS)["runs"].runs
    assert {name: len(some) for name, some in unpacked(packed(runs)).items()} == {"native": 1, "int8": 1, "int4": 1}
    monkeypatch.setattr(kept_runs, "MOST_OF_RUNS", 100)
    assert packed(runs) == ""


def test_runs_with_too_many_values_are_refused_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of([[]] * 600_000)
    monkeypatch.setattr("lab.trace.run.json.loads", lambda text: pytest.fail("it was read"))
    with pytest.raises(RunFileError, match="more than 500,000 values"):
        unpacked(text)
