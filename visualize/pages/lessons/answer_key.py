"""Notes on each lesson for the instructor's page, with the answers that this machine has measured."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lab.errors import LabError
from lessons.course import course
from lessons.expressions import Figures
from lessons.lesson import Lesson
from lessons.marking import right_answer
from lessons.template import Template

BLANK = "▢"
"""Placeholder for a number of a run that was not made yet."""


@dataclass(frozen=True)
class Answer:
    """The figures of a lesson's run, and when it ended. ``lacks``: why they do not give all that is told of the lesson;
    empty: they do."""

    figures: Figures
    at: datetime
    lacks: str = ""

    @property
    def when(self) -> str:
        return f"{self.at:%Y-%m-%d, %H:%M}"


class Answers:
    """Figures that this machine last measured for each lesson, for any session; lost when the server ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, Answer] = {}

    def put(self, number: int, figures: Figures) -> None:
        """Keep the figures of a lesson's finished run. Those that give all answers stay until others do."""
        new = Answer(figures, datetime.now(), _lacking(course()[number], figures))
        with self._lock:
            before = self._last.get(number)
            if not (new.lacks and before and not before.lacks):
                self._last[number] = new

    @property
    def last(self) -> Mapping[int, Answer]:
        """The answers by lesson number."""
        with self._lock:
            return dict(self._last)


def lesson_records(answers: Answers) -> list[dict[str, Any]]:
    """All lessons in order, and when each was measured; empty: not yet."""
    last = answers.last
    return [
        {"number": number, "title": lesson.front.title, "measured": last[number].when if number in last else ""}
        for number, lesson in course().items()
    ]


def notes_on(lesson: Lesson, answer: Answer | None) -> str:
    """Markdown: a lesson's questions with their answers, and what its file says to the instructor. Blanks where there
    is no answer, or one that lacks a figure; then with the reason."""
    if answer is None:
        return _written(lesson, None, f"Not measured yet: numbers will replace {BLANK}.")
    missing = f", but not all of it: {answer.lacks}" if answer.lacks else "."
    figures = None if answer.lacks else answer.figures
    return _written(lesson, figures, f"Measured on this machine, {answer.when}{missing}")


def _lacking(lesson: Lesson, figures: Figures) -> str:
    """Why these figures do not give all that is told of a lesson; empty: they do."""
    try:
        _written(lesson, figures, "")
    except LabError as error:
        return str(error)
    return ""


def _written(lesson: Lesson, figures: Figures | None, measured: str) -> str:
    """``measured``: whether and when, in a sentence. Raises ExpressionError if the figures lack one."""
    front = lesson.front

    def filled(text: Template) -> str:
        return text.blank(BLANK) if figures is None else text.fill(figures)

    rows = [
        f"## {lesson.number}. {front.title}",
        f"*{front.minutes} minutes.* [Open the lesson](lessons?lesson={lesson.number})",
    ]
    for title, question in (("Predict", front.predict), ("Check", front.check)):
        right = BLANK if figures is None else right_answer(question, figures)
        rows.append(f"**{title}.** {filled(question.question)}\n\n> **{right}**")
    return "\n\n".join([*rows, f"*{measured}*", filled(lesson.instructor)])
