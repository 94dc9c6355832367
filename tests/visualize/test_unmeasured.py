"""A machine on which a figure cannot be measured: its lesson says which, and no page is left broken by it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from lessons.experiments import runs
from tests.visualize import scripted
from visualize.jobs.job_queue import JobQueue
from visualize.pages.lessons import instructor as instructor
from visualize.pages.lessons import page as lessons
from visualize.pages.lessons.answer_key import BLANK, Answers
from visualize.pages.lessons.learner import Learner

LIMITED, FREE = 12, 11
"""Lessons that say how close a pass comes to this machine's limits, and that do not."""
MISSING = "roofline_fraction was not measured."
VISITOR = SimpleNamespace(session_hash="me")


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device can do at best is not known."""
    monkeypatch.setattr(scripted, "LIMITS", SimpleNamespace(bytes_per_second=None, flops_per_second=None))


def handlers(build: Callable[..., None], answers: Answers) -> dict[str, Callable[..., Any]]:
    """What happens on a page, by name."""
    with gr.Blocks() as pages:
        build(pages, lambda pair: scripted.ScriptedEngine(), JobQueue(), answers)
    return {getattr(event.fn, "__name__", ""): event.fn for event in pages.fns.values()}


def observed(updates: Iterator[list[Any]]) -> dict[str, Any]:
    """The last record of a lesson's run."""
    *_, last = updates
    return json.loads(last[7])


@pytest.mark.slow
def test_a_lesson_that_lacks_a_figure_says_which_and_keeps_nothing() -> None:
    answers = Answers()
    run = handlers(lessons.build, answers)["run"]
    found = observed(run(VISITOR, LIMITED, Learner(4.0)))
    assert found["running"] is False
    assert MISSING in found["problem"]
    assert answers.last == {}
    assert observed(run(VISITOR, FREE, Learner(0)))["over"], "the page goes on, with a lesson that has all of them"
    assert list(answers.last) == [FREE]


@pytest.mark.slow
def test_a_change_that_lacks_a_figure_says_which_and_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    page = handlers(lessons.build, Answers())
    *_, (learner, *_) = page["run"](VISITOR, FREE, Learner(0))
    monkeypatch.setattr(runs, "figures", lambda measured: {name: {} for name in measured})
    *_, (_, _, last) = page["change"](VISITOR, FREE, learner)
    record = json.loads(last)
    assert record["running"] is False
    assert "runs.lookup.target_passes_per_token was not measured." in record["problem"]
    assert record["rows"], "what was there before the change is still shown"


def test_the_instructors_page_has_blanks_and_the_reason_where_a_figure_is_missing() -> None:
    page = handlers(instructor.build, Answers())
    *_, (record, *_texts) = page["measure"](VISITOR, SimpleNamespace(lessons=[LIMITED, FREE]))
    assert json.loads(record)["running"] is False
    _, *texts = page["opened"]()  # by whom it may be
    limited, free = texts[LIMITED - 1], texts[FREE - 1]
    assert BLANK in limited
    assert MISSING in limited
    assert BLANK not in free
