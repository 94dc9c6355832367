"""The Instructor page: blanks until this machine has measured, then its numbers."""

from __future__ import annotations

import functools
import json
from types import SimpleNamespace

import gradio as gr
import pytest

from lab import Engine, load_engine
from lab.measure.scaling_fit import StepTimes
from lessons.course import course
from lessons.experiments.growth_experiments import figures as of_growth
from lessons.marking import mark, right_answer
from visualize.jobs.job_queue import JobQueue
from visualize.pages.lessons import instructor as instructor
from visualize.pages.lessons.answer_key import BLANK, Answers, lesson_records, notes_on
from visualize.pages.lessons.lesson_run import LessonRun

COSTS = 3


@functools.cache
def load(pair: str) -> Engine:
    return load_engine(draft=pair)


def test_answers_not_measured_yet_are_blank() -> None:
    for number, lesson in course().items():
        text = notes_on(lesson, None)
        assert f"## {number}. {lesson.front.title}" in text
        assert text.count(f"> **{BLANK}**") == 2
        assert "{{" not in text
    assert {lesson["measured"] for lesson in lesson_records(Answers())} == {""}


@pytest.mark.slow
def test_the_last_measurement_fills_in_the_answer() -> None:
    lesson, answers = course()[COSTS], Answers()
    task = LessonRun(JobQueue(), load, lesson.front.preset)
    list(task.records())
    figures = {kind: found.figures for kind, found in task.measured.items()}
    answers.put(COSTS, {})
    answers.put(COSTS, figures)
    text = notes_on(lesson, answers.last[COSTS])
    assert BLANK not in text
    assert "> **The small one.**" in text
    assert "> **16**" in text
    assert "A token takes 512 KiB in Llama 2 7B and 320 KiB in Llama 2 70B." in " ".join(text.split())
    measured = f"*Measured on this machine, {answers.last[COSTS].when}.*"
    assert measured in text
    answers.put(COSTS, {})
    assert notes_on(lesson, answers.last[COSTS]) == text, "what was complete stays"
    assert [found["number"] for found in lesson_records(answers) if found["measured"]] == [COSTS]


@pytest.mark.slow
def test_stop_between_two_lessons_ends_the_measuring() -> None:
    with gr.Blocks() as pages:
        instructor.build(pages, load, JobQueue(), Answers())
    measure, stop = (
        next(event.fn for event in pages.fns.values() if getattr(event.fn, "__name__", "") == name)
        for name in ("measure", "stop")
    )
    visitor = SimpleNamespace(session_hash="me")
    records = (json.loads(line) for line, *_ in measure(visitor, SimpleNamespace(lessons=[COSTS, COSTS + 1])))
    assert any("now" not in record for record in records), "the first lesson is over"
    stop(visitor)
    rest = list(records)
    assert [(record["running"], record["progress"]) for record in rest] == [(False, "Stopped after 1 of 2.")]


def test_the_right_answer_shown_is_marked_as_near() -> None:
    curve = course()[2]
    lengths = tuple(at for at in (20, 80, 140, 200, 260) for _ in range(10))
    slow, fast = StepTimes(lengths, tuple(length / 10 for length in lengths)), StepTimes(lengths, (1.0,) * 50)
    figures = {"growth": {"uncached": of_growth(slow), "cached": of_growth(fast)}}
    said = right_answer(curve.front.predict, figures)
    assert said == "2.00× at 20, 8.00× at 80, 14.0× at 140, 20.0× at 200, 26.0× at 260"
    assert mark(curve.front.predict, [2.0, 8.0, 14.0, 20.0, 26.0], figures).near
