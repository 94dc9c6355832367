"""The time that a lesson takes: its words are counted, its runs were timed, and the rest is assumed."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from typing import Any

from lab.measure.reference import FOLDER
from lessons.lesson import Choice, Lesson

RECORD = FOLDER / "lessons-cpu.json"
"""What ``python -m docs.record_lesson_times`` timed."""
STATES = ("calm", "busy")
WORDS_PER_MINUTE = 200
"""Assumed, of somebody who reads to understand."""
PER_QUESTION, PER_VIEW = 1.0, 0.5
"""Minutes, assumed: to think of an answer and read what is said of it; to look at a chart."""


@functools.cache
def record() -> dict[str, Any]:
    return json.loads(RECORD.read_text("utf-8"))


def words(lesson: Lesson) -> int:
    """Words that a learner reads: all of the page but replies to wrong answers. A number of the run is one word."""
    front = lesson.front
    texts = [lesson.introduction, lesson.explain.blank("x"), front.change.title, front.change.why]
    texts += [front.change.see.blank("x"), front.figure.say if front.figure else ""]
    for question in (front.predict, front.check):
        texts += [question.question.blank("x"), question.near.blank("x")]
        texts += [option.text for option in question.options] if isinstance(question, Choice) else []
    texts += [view.say for view in front.observe]
    texts += [front.beyond.vllm, front.beyond.code] if front.beyond else []
    return len(re.sub(r"\]\([^)]*\)", "]", " ".join(texts)).split())


def run_minutes(lesson: Lesson, state: str) -> float | None:
    """Of the lesson's run and that of its change together; None: not timed."""
    seconds = record()[state]["seconds"].get(lesson.name)
    return None if seconds is None else seconds / 60


def needed(lesson: Lesson) -> float:
    """Minutes on the calmer machine."""
    return words(lesson) / WORDS_PER_MINUTE + (run_minutes(lesson, "calm") or 0) + _rest(lesson)


def longer_when_busy(lessons: Iterable[Lesson]) -> float | None:
    """Minutes by which these lessons' runs took longer on the busy machine; None: not all were timed there."""
    pairs = [[run_minutes(lesson, state) for state in STATES] for lesson in lessons]
    return None if any(None in pair for pair in pairs) else sum(busy - calm for calm, busy in pairs)


def table(lessons: Iterable[Lesson]) -> str:
    """Markdown: the minutes that are planned for each lesson, and what they are made of."""
    lines = [
        "| lesson | planned | words | reading | runs, calm | runs, busy | questions, charts | all, calm |",
        f"|{' --- |' * 8}",
    ]
    for lesson in lessons:
        count, timed = words(lesson), [run_minutes(lesson, state) for state in STATES]
        runs = ["-" if taken is None else f"{taken:.1f}" for taken in timed]
        cells = [lesson.number, lesson.front.minutes, f"{count:,}", f"{count / WORDS_PER_MINUTE:.1f}", *runs]
        cells += [f"{_rest(lesson):g}", f"{needed(lesson):.1f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    said = (
        "In minutes, what is planned and what it is made of. Words are counted. Runs, each with its change to try, "
        f"were timed on two cores of {record()['calm']['machine']['processor']}: calm ({_found('calm')}), and busy "
        f"with other work ({_found('busy')}). Assumed are {WORDS_PER_MINUTE} words a minute, {PER_QUESTION:g} minute a "
        f"question and {PER_VIEW:g} a chart. No class has been held by these timetables."
    )
    return "\n".join([said, "", *lines])


def _rest(lesson: Lesson) -> float:
    return 2 * PER_QUESTION + PER_VIEW * len(lesson.front.observe)


def _found(state: str) -> str:
    """The findings of the look at the machine, without its verdict."""
    return record()[state]["found"].partition(": ")[2].partition(". ")[0].rstrip(".")
