"""Reading lessons: ``NN-name.md``, front matter in YAML and a text in Markdown with a heading ``## Explain`` and
perhaps another, ``## For the instructor``.

Everything is checked before anybody sees a lesson: keys and values, that every expression asks for figures that the
preset gives, and that every number in the explanation and in the instructor's notes comes from a run or is cited.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from lab.errors import LabError
from lessons.experiments import Preset
from lessons.experiments.base import Part
from lessons.expressions import ExpressionError
from lessons.lesson import FrontMatter, Lesson, overlaid
from lessons.template import Template

FOLDER = Path(__file__).parent
FILE = re.compile(r"(\d\d)-([a-z0-9-]+)\.md")
FENCE = "---"
SAFE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""In C, where PyYAML has it: in Python, the course takes 0.6 s to read."""
EXPLAIN = "## Explain"
INSTRUCTOR = "## For the instructor"
TOLD = ("What to say", "Wrong answers", "The answer", "CPU, small GPU, large GPU")
"""The parts of the instructor's notes, each under a heading ``###``."""
AnyPart = TypeVar("AnyPart", bound=Part)


class LessonError(LabError):
    """An invalid lesson file. The message gives the file, the line, what is wrong and what would be right."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{path.name}, line {line}: {problem}")


@functools.cache
def course(folder: Path = FOLDER) -> dict[int, Lesson]:
    """All lessons by number, in order. Raises LessonError: a lesson is invalid, or needs one that does not come before
    it."""
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
    """The lesson in a file. Raises LessonError: the first thing in it that is wrong."""
    named = FILE.fullmatch(path.name)
    if not named:
        raise LessonError(path, 1, "a lesson's file is called NN-name.md, as 02-the-kv-cache.md.")
    source = Source.read(path)
    front = source.as_part(FrontMatter)
    for where, problem in front.contradictions():
        raise source.error(source.line((where,)), f"{where}: {problem}")
    try:
        changed = Preset.model_validate(overlaid(source.given["preset"], front.change.change))
    except ValidationError as error:
        said = "; ".join(found["msg"].removeprefix("Value error, ") for found in error.errors())
        line = source.line(("try", "change"))
        raise source.error(line, f"try.change makes a senseless preset: {said}") from error
    introduction, explanation, notes = _parts(source)
    explain, instructor = source.template(explanation, EXPLAIN), source.template(notes, INSTRUCTOR)
    lesson = Lesson(int(named[1]), path.stem, front, changed, introduction.strip(), explain, instructor)
    headings = {"explain": EXPLAIN, "instructor": INSTRUCTOR}
    for where, expression, known in lesson.expressions():
        at = headings.get(where)
        line = source.line_of(f"{at}\n") if at else source.line(tuple(where.split(".")))
        for name in expression.names:
            if problem := _unknown(known, name):
                raise source.error(line, f"{where}: {expression.text!r}: {problem}")
    return lesson


def _parts(source: Source) -> tuple[str, str, str]:
    """The introduction, the explanation, and the instructor's notes."""
    introduction, *rest = source.body.split(f"\n{EXPLAIN}\n")
    if len(rest) != 1:
        raise source.error(source.first, f"the text has one heading {EXPLAIN!r}: what stands before it is read first.")
    explanation, heading, notes = rest[0].partition(f"\n{INSTRUCTOR}\n")
    if heading and tuple(re.findall(r"^#+ (.*)$", notes, re.MULTILINE)) != TOLD:
        said = f"below {INSTRUCTOR!r} are the headings {', '.join(f'### {title}' for title in TOLD)}, in this order."
        raise source.error(source.line_of(f"{INSTRUCTOR}\n"), said)
    return introduction, explanation, notes


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
    return f"{name} is no figure but has some: {', '.join(found)}." if isinstance(found, Mapping) else ""


@dataclass(frozen=True)
class Source:
    """A file: ``given`` is what the front matter says; ``body`` is the text below it, from line ``first`` on."""

    path: Path
    given: Any
    body: str
    first: int
    _tree: yaml.Node | None

    @classmethod
    def read(cls, path: Path) -> Source:
        """Read a file. Raises LessonError: no front matter, or it is not YAML."""
        opening, *rest = path.read_text("utf-8").split(f"{FENCE}\n", 2)
        if opening or len(rest) != 2:
            said = f"the file begins with a front matter: a line {FENCE}, YAML, and another {FENCE}."
            raise LessonError(path, 1, said)
        source, body = rest
        try:
            tree = yaml.compose(source, SAFE)
            given = SAFE("").construct_document(tree) if tree else None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            said = f"the front matter is not YAML: {getattr(error, 'problem', error)}."
            raise LessonError(path, mark.line + 2 if mark else 2, said) from error
        return cls(path, given, body, source.count("\n") + 3, tree)

    def as_part(self, kind: type[AnyPart]) -> AnyPart:
        """The front matter, checked. Raises LessonError: the first of pydantic's errors, with its line."""
        try:
            return kind.model_validate(self.given)
        except ValidationError as error:
            found = error.errors()[0]
            where = ".".join(str(part) for part in found["loc"] if not str(part).startswith("function-"))
            said = found["msg"].removeprefix("Value error, ")
            raise self.error(self.line(found["loc"]), f"{where}: {said}" if where else said) from error

    def template(self, text: str, heading: str) -> Template:
        """The text below a heading. Raises LessonError for a number that neither comes from a run nor is cited."""
        line = self.line_of(f"{heading}\n") if text else self.first
        try:
            template = Template(text)
        except ExpressionError as error:
            raise self.error(line, str(error)) from error
        if numbers := template.hard_coded():
            said = (
                f"the text below {heading!r} says {', '.join(numbers)}. A result comes from the run, as "
                "{{ runs.a.ttft_ms | ms }}; a figure from elsewhere is cited: it is the text of a link."
            )
            raise self.error(line, said)
        return template

    def error(self, line: int, problem: str) -> LessonError:
        return LessonError(self.path, line, problem)

    def line(self, place: tuple[str | int, ...]) -> int:
        """The line of the file with the key at ``place``, or with the last part of it that exists.

        Pydantic's places also name which of several shapes was tried; no key has such a name, and they are skipped.
        """
        tree = self._tree
        line = tree.start_mark.line if tree else 0
        for part in place:
            if isinstance(tree, yaml.MappingNode):
                for key, value in tree.value:
                    if key.value == part:
                        line, tree = key.start_mark.line, value
            elif isinstance(tree, yaml.SequenceNode) and isinstance(part, int) and part < len(tree.value):
                tree = tree.value[part]
                line = tree.start_mark.line
        return line + 2  # the fence is line 1

    def line_of(self, text: str) -> int:
        """The line of the file on which ``text``, a part of the body, begins."""
        return self.first + self.body[: self.body.index(text)].count("\n")
