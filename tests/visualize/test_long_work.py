"""Long work shows itself: the look at the machine, lanes and blocks as they come, the time left, the reference."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from lab.measure import reference as records
from lab.measure.measuring import CAREFUL, Spread
from lab.measure.quiet import Gate, look
from lab.measure.reference import Reference
from lessons.course import course
from lessons.experiments.base import Measured
from tests.visualize.compared import configs, made
from tests.visualize.scripted import ScriptedEngine
from tests.waiting import until
from visualize.jobs import live_run
from visualize.jobs.job_queue import JobQueue
from visualize.jobs.live_run import time_left
from visualize.pages.compare.compare_job import Comparison
from visualize.pages.compare.configurations import CompareInputs
from visualize.pages.lessons.learner import Learner, restored
from visualize.pages.lessons.lesson_run import LessonRun
from visualize.pages.lessons.lesson_view import explained, outcome
from visualize.pages.lessons.observation import reference_views, seen, with_reference
from visualize.reduce.compare_report import so_far, whole
from visualize.text import as_line

MACHINE = {"date": "2026-11-29", "processor": "Abacus", "torch_threads": 2}


@pytest.mark.parametrize(
    ("steps", "busy"),
    [([4.0] * 50, False), ([4.0, 4.4] * 25, False), ([4.0, 8.0] * 25, True), ([4.0] * 40 + [90.0] * 10, False)],
)
def test_a_machine_is_busy_if_the_middle_half_of_its_steps_differs(steps: list[float], busy: bool) -> None:
    """A step now and then that is held up says nothing."""
    gate = Gate(Spread.of(steps))
    assert gate.busy == busy
    assert ("busy" in gate.sentence) == busy
    assert Gate(Spread.of(steps), waited=0.9).busy, "steps that all wait alike for a core are steady, and slow"
    assert "waited for a core 90%" in Gate(Spread.of(steps), waited=0.9).sentence


def test_a_cancelled_look_finds_nothing() -> None:
    cancelled = threading.Event()
    assert look(ScriptedEngine(), cancelled) is not None
    cancelled.set()
    assert look(ScriptedEngine(), cancelled) is None


def test_the_time_left_is_told_coarsely() -> None:
    said = {0.2: "about 1 s left", 7.2: "about 8 s left", 33: "about 35 s left", 100: "about 2 min left"}
    assert {seconds: time_left(seconds) for seconds in said} == said


@pytest.mark.slow
def test_a_comparison_shows_its_lanes_while_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "LONG_S", 0.0)  # so that the time left is told of the shortest
    inputs = CompareInputs(lanes=("cache", "draft-4"), max_tokens=60)
    job = Comparison(JobQueue(), lambda pair: ScriptedEngine(0.005), inputs)
    under_way = [record for record in job.records() if record["running"]]
    live = [record["live"]["lanes"] for record in under_way if "live" in record]
    written = [sum(len(pieces) for _, pieces in lanes[0]["commits"]) for lanes in live]
    assert any(0 < tokens < 60 for tokens in written)
    assert max(written) == 60
    runs = [lane["run"] for lanes in live for lane in lanes]
    assert {1, 2} < set(runs), "warm-ups and repeats are shown alike"
    shares = [record["share"] for record in under_way if "share" in record]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] <= 1
    assert any(record["left"].startswith("about ") for record in under_way if "left" in record)
    assert job.record()["gate"]["said"]
    assert "live" not in job.record()


LESSON = 12
"""One of which every figure comes from runs."""


class SeenRun(LessonRun):
    """A run of a lesson whose reported records are all kept."""

    def __init__(self, *given: Any) -> None:
        self.seen: list[dict[str, Any]] = []
        super().__init__(*given)

    def record(self) -> dict[str, Any]:
        self.seen.append(super().record())
        return self.seen[-1]


def lesson_run(seconds: float = 0.0) -> tuple[LessonRun, list[dict[str, Any]]]:
    task = SeenRun(JobQueue(), lambda pair: ScriptedEngine(seconds), course()[LESSON].front.preset)
    until(lambda: task.seen and not task.seen[-1]["running"])
    return task, task.seen


@pytest.mark.slow
def test_a_lessons_run_shows_the_pool_filling() -> None:
    task, records = lesson_run(0.001)
    pools = [record["pool"] for record in records if record.get("pool")]
    used = [sum(state == "live" for state in pool["rows"]["state"]) for pool in pools]
    assert len({*used}) > 3
    assert task.record()["gate"]["said"]


def test_the_careful_mode_repeats_more() -> None:
    for lesson in course().values():
        quick, careful = lesson.front.preset, lesson.front.preset.careful()
        for name, one in quick.experiments.items():
            if one.repeated:
                assert careful.experiments[name].repeats == min(one.most_repeats, CAREFUL * one.repeats)
            else:
                assert careful.experiments[name] == one


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Reference:
    """A reference machine's record of a lesson and of two settings."""
    lesson, (task, _) = course()[LESSON], lesson_run()
    views = seen(lesson, task.measured)
    figures = {kind: found.figures for kind, found in task.measured.items()}
    lessons = {lesson.name: {"figures": figures, "panels": views.panels, "played": None}}
    Reference(MACHINE, False, {"Cache": [400, 410], "INT8": [420, 430]}, lessons).save(
        tmp_path / "reference-cpu.json.gz"
    )
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    records.reference.cache_clear()
    yield records.reference()
    records.reference.cache_clear()


def test_a_recorded_run_carries_the_lesson_and_says_where_it_is_from(recorded: Reference) -> None:
    lesson = course()[LESSON]
    learner = Learner(0 if lesson.front.predict.kind == "choice" else lesson.front.predict.range[0])
    assert outcome(lesson, learner)["carries"] == recorded.label == "2 cores of Abacus, 29 November 2026"
    kept = {**learner.kept(lesson), "recorded": True}
    found = restored(lesson, as_line(kept))
    assert found.recorded
    assert found.figures["runs"].keys() == lesson.front.preset.runs.settings.keys()
    assert recorded.label in explained(lesson, found)
    assert "this machine" not in outcome(lesson, found)["said"]
    assert restored(lesson, as_line(found.kept(lesson))) == found, "the browser keeps that it was recorded, no figures"
    assert len(reference_views(lesson).panels) == len(lesson.front.observe)


def test_the_reference_stands_behind_what_differs_from_it(recorded: Reference) -> None:
    lesson = course()[LESSON]
    same = with_reference(lesson, reference_views(lesson).panels)
    assert not any("reference" in panel.get("chart", {}) for panel in same)
    task, _ = lesson_run()
    other = {kind: Measured(found.figures, found.runs) for kind, found in task.measured.items()}
    other["runs"].runs["draft"] = other["runs"].runs["cached"]
    panels = with_reference(lesson, seen(lesson, other).panels)
    behind = [panel for panel in panels if "reference" in panel.get("chart", {})]
    assert behind
    assert all(recorded.label in panel["say"] for panel in behind)


def test_a_comparison_that_cannot_tell_names_the_recorded_ratio(recorded: Reference) -> None:
    runs = made("cache", "int8", "paged", repeats=2)
    runs["INT8"].reverse()  # once faster, once slower
    bars = so_far(runs, recorded)["charts"]["bars"]["reference"]["columns"][0]
    assert bars == {"x": [405, 425], "y": [0, 1]}
    said = whole(configs(runs), runs, {}, recorded)["said"]
    [line] = [text for text in said if recorded.label in text]
    assert "INT8 1.05×" in line
    assert "Paged" not in line
    assert "reference" not in so_far({"Mine": next(iter(runs.values()))}, recorded)["charts"]["bars"]
    assert CompareInputs(lanes=("cache", "int4"), repeats=9).asks_the_usual
    assert not CompareInputs(prompt="Another").asks_the_usual
