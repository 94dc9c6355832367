"""Reading lessons: ``NN-name.md``, front matter in YAML and a text in Markdown with a heading ``## Explain`` and
perhaps another, ``## For the instructor``.

Everything is checked before anybody sees a lesson: keys and values, that every expression asks for figures that the
preset gives, and that every number in the explanation and in the instructor's notes comes from a run or is cited.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lessons.experiments import Preset
from lessons.expressions import Expression
from lessons.functions import ExpressionError
from lessons.lesson import FrontMatter, Lesson, overlaid
from lessons.source import LessonError, Source
from lessons.template import Template

FOLDER = Path(__file__).parent
FILE = re.compile(r"(\d\d)-([a-z0-9-]+)\.md")
EXPLAIN = "## Explain"
INSTRUCTOR = "## For the instructor"
TOLD = ("What to say", "Wrong answers", "The answer", "CPU, small GPU, large GPU")
"""The parts of the instructor's notes, each under a heading ``###``."""


@functools.cache
def course(folder: Path = FOLDER) -> dict[int, Lesson]:
    """All lessons by number, in order.

    Raises:
        LessonError: a lesson is invalid, or needs one that does not come before it.
    """
    lessons: dict[int, Lesson] = {}
    for path in sorted(folder.glob("[0-9]*.md")):
        lesson = read(path)
        if lesson.number in lessons:
            raise LessonError(path, 1, f"there are two lessons {lesson.number}; rename one of the files.")
        for needed in lesson.front.needs:
            if needed not in lessons:
                raise LessonError(path, 1, f"needs: there is no lesson {needed} before this one.")
        lessons[lesson.number] = lesson
    return lessons


def read(path: Path) -> Lesson:
    """The lesson in a file.

    Raises:
        LessonError: the first thing in it that is wrong.
    """
    named = FILE.fullmatch(path.name)
    if not named:
        raise LessonError(path, 1, "a lesson's file is called NN-name.md, as 02-the-kv-cache.md.")
    source = Source.read(path)
    try:
        front = FrontMatter.model_validate(source.given)
    except ValidationError as error:
        raise source.error_of(error) from error
    for where, problem in front.contradictions():
        raise LessonError(path, source.line((where,)), f"{where}: {problem}")
    try:
        changed = Preset.model_validate(overlaid(source.given["preset"], front.change.change))
    except ValidationError as error:
        said = "; ".join(found["msg"].removeprefix("Value error, ") for found in error.errors())
        line = source.line(("try", "change"))
        raise LessonError(path, line, f"try.change makes a senseless preset: {said}") from error
    introduction, explanation, instructor = _parts(source)
    lesson = Lesson(
        int(named[1]),
        path.stem,
        front,
        changed,
        introduction.strip(),
        measured_only(source, explanation, EXPLAIN),
        measured_only(source, instructor, INSTRUCTOR),
    )
    headings = {"explain": EXPLAIN, "instructor": INSTRUCTOR}
    for where, expression, known in lesson.expressions():
        at = headings.get(where)
        line = source.line_of(f"{at}\n") if at else source.line(tuple(where.split(".")))
        for name in expression.names:
            if problem := _unknown(known, name):
                raise LessonError(path, line, f"{where}: {_quoted(expression)}: {problem}")
    return lesson


def _parts(source: Source) -> tuple[str, str, str]:
    """The introduction, the explanation, and the instructor's notes."""
    body = source.body
    if body.count(f"\n{EXPLAIN}\n") != 1:
        said = f"the text has one heading {EXPLAIN!r}: what stands before it is read first."
        raise LessonError(source.path, source.first, said)
    introduction, rest = body.split(f"\n{EXPLAIN}\n")
    explanation, heading, instructor = rest.partition(f"\n{INSTRUCTOR}\n")
    found = tuple(re.findall(r"^#+ (.*)$", instructor, re.MULTILINE))
    if heading and found != TOLD:
        said = f"below {INSTRUCTOR!r} are the headings {', '.join(f'### {title}' for title in TOLD)}, in this order."
        raise LessonError(source.path, source.line_of(f"{INSTRUCTOR}\n"), said)
    return introduction, explanation, instructor


def measured_only(source: Source, text: str, heading: str) -> Template:
    """The text below a heading. Raises LessonError for a number that neither comes from a run nor is cited."""
    line = source.line_of(f"{heading}\n") if text else source.first
    try:
        template = Template(text)
    except ExpressionError as error:
        raise LessonError(source.path, line, str(error)) from error
    if numbers := template.hard_coded():
        said = (
            f"the text below {heading!r} says {', '.join(numbers)}. A result comes from the run, as "
            "{{ runs.a.ttft_ms | ms }}; a figure from elsewhere is cited: it is the text of a link."
        )
        raise LessonError(source.path, line, said)
    return template


def _unknown(known: Mapping[str, Any], name: str) -> str:
    """Problem with a figure's name; empty if there is none."""
    found: Any = known
    for place, part in enumerate(name.split(".")):
        if not isinstance(found, Mapping):
            return f"{name}: nothing stands behind the figure's name."
        if part not in found:
            before = ".".join(name.split(".")[:place])
            return f"there is no {part!r}{f' in {before}' if before else ''}; there are {', '.join(found)}."
        found = found[part]
    if isinstance(found, Mapping):
        return f"{name} is no figure but has some: {', '.join(found)}."
    return ""


def _quoted(expression: Expression) -> str:
    return repr(expression.text)
