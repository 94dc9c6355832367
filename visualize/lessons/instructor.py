"""What the instructor's page says about each lesson, with the answers that this machine has measured."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lab.config import LabError
from lessons.course import course
from lessons.expressions import Figures
from lessons.lesson import Lesson
from lessons.marking import right_answer

BLANK = "▢"
"""Placeholder for a number of a run that was not made yet."""


@dataclass(frozen=True)
class Answer:
    """The figures of a lesson's run, and when it ended."""

    figures: Figures
    at: datetime

    @property
    def when(self) -> str:
        return f"{self.at:%Y-%m-%d, %H:%M}"


class Answers:
    """What this machine last measured for each lesson, whoever ran it; forgotten when the server ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, Answer] = {}

    def put(self, number: int, figures: Figures) -> None:
        """Keep the figures of a lesson's finished run."""
        with self._lock:
            self._last[number] = Answer(figures, datetime.now())

    @property
    def last(self) -> Mapping[int, Answer]:
        """The answers by lesson number."""
        with self._lock:
            return dict(self._last)


def lesson_records(answers: Answers) -> list[dict[str, Any]]:
    """All lessons in order, and when each was measured; empty: not yet."""
    last = answers.last
    return [
        {
            "number": number,
            "title": lesson.front.title,
            "measured": last[number].when if number in last else "",
        }
        for number, lesson in course().items()
    ]


def told(lesson: Lesson, answer: Answer | None) -> str:
    """Markdown: a lesson's questions with their answers, and what its file says to the instructor. Blanks where there
    is no answer, or one that lacks a figure; then with the reason."""
    if answer is None:
        return _written(lesson, None, f"Not measured yet: numbers will replace {BLANK}.")
    try:
        return _written(lesson, answer, f"Measured on this machine, {answer.when}.")
    except LabError as error:
        return _written(lesson, None, f"Measured on this machine, {answer.when}, but not all of it: {error}")


def _written(lesson: Lesson, answer: Answer | None, measured: str) -> str:
    """``measured``: whether and when, in a sentence. Raises ExpressionError if the answer lacks a figure."""
    front = lesson.front
    said = lesson.instructor
    text = said.fill(answer.figures) if answer else said.blank(BLANK)
    rows = [
        f"## {lesson.number}. {front.title}",
        f"*{front.minutes} minutes.* [Open the lesson](lessons?lesson={lesson.number})",
    ]
    for title, question in (("Predict", front.predict), ("Check", front.check)):
        asked = question.question.fill(answer.figures) if answer else question.question.blank(BLANK)
        right = right_answer(question, answer.figures) if answer else BLANK
        rows.append(f"**{title}.** {asked}\n\n> **{right}**")
    return "\n\n".join([*rows, f"*{measured}*", text])
