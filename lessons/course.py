"""Reading lessons: ``NN-name.md``, a front matter in YAML and a text in Markdown with one heading, ``## Explain``.

Everything is checked before anybody sees a lesson: keys and values, that every expression asks for figures that the
preset gives, and that no number in the explanation stands there by itself.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from lab.config import LabError
from lessons.experiments import Preset
from lessons.expressions import Expression
from lessons.functions import ExpressionError
from lessons.lesson import FrontMatter, Lesson, overlaid
from lessons.template import Template

FOLDER = Path(__file__).parent
FILE = re.compile(r"(\d\d)-([a-z0-9-]+)\.md")
EXPLAIN = "## Explain"
FENCE = "---"


class LessonError(LabError):
    """A lesson's file that says something senseless: the file, the line, what is wrong and what would be right."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{path.name}, line {line}: {problem}")


@functools.cache
def course(folder: Path = FOLDER) -> dict[int, Lesson]:
    """All lessons by number, in order.

    Raises:
        LessonError: one of them is not in order, or needs one that does not come before it.
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
    """The lesson of a file.

    Raises:
        LessonError: the first thing in it that is wrong.
    """
    named = FILE.fullmatch(path.name)
    if not named:
        raise LessonError(path, 1, "a lesson's file is called NN-name.md, as 02-the-kv-cache.md.")
    text = path.read_text("utf-8")
    opening, *rest = text.split(f"{FENCE}\n", 2)
    if opening or len(rest) != 2:
        raise LessonError(path, 1, f"a lesson begins with a front matter: a line {FENCE}, YAML, and another {FENCE}.")
    source, body = rest
    given, tree = _yaml(path, source)
    first = source.count("\n") + 3  # line of the body
    if body.count(f"\n{EXPLAIN}\n") != 1:
        raise LessonError(path, first, f"the text has one heading {EXPLAIN!r}: what stands before it is read first.")
    introduction, explanation = body.split(f"\n{EXPLAIN}\n")
    explain_line = first + introduction.count("\n") + 1
    try:
        front = FrontMatter.model_validate(given)
    except ValidationError as error:
        raise _told(path, tree, error) from error
    for where, problem in front.contradictions():
        raise LessonError(path, _line(tree, (where,)), f"{where}: {problem}")
    try:
        changed = Preset.model_validate(overlaid(given["preset"], front.change.change))
    except ValidationError as error:
        said = "; ".join(found["msg"].removeprefix("Value error, ") for found in error.errors())
        line = _line(tree, ("try", "change"))
        raise LessonError(path, line, f"try.change makes a senseless preset: {said}") from error
    try:
        explain = Template(explanation)
    except ExpressionError as error:
        raise LessonError(path, explain_line, str(error)) from error
    if numbers := explain.hard_coded():
        said = (
            f"the explanation says {', '.join(numbers)}. A result comes from the run, as {{{{ runs.a.ttft_ms | ms }}}}"
        )
        raise LessonError(path, explain_line, f"{said}; a figure from elsewhere is cited: it is the text of a link.")
    lesson = Lesson(int(named[1]), path.stem, front, changed, introduction.strip(), explain)
    for where, expression, known in lesson.expressions():
        line = explain_line if where == "explain" else _line(tree, tuple(where.split(".")))
        for name in expression.names:
            if problem := _unknown(known, name):
                raise LessonError(path, line, f"{where}: {_quoted(expression)}: {problem}")
    return lesson


def _yaml(path: Path, source: str) -> tuple[Any, yaml.Node | None]:
    """What the front matter says, and its tree, which knows lines."""
    try:
        return yaml.safe_load(source), yaml.compose(source, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 2 if error.problem_mark else 2
        raise LessonError(path, line, f"the front matter is not YAML: {error.problem}.") from error
    except yaml.YAMLError as error:
        raise LessonError(path, 2, "the front matter is not YAML.") from error


def _told(path: Path, tree: yaml.Node | None, error: ValidationError) -> LessonError:
    """The first of pydantic's findings as a sentence with its line."""
    found = error.errors()[0]
    where = [str(part) for part in found["loc"] if not str(part).startswith("function-")]
    said = found["msg"].removeprefix("Value error, ")
    return LessonError(path, _line(tree, found["loc"]), f"{'.'.join(where)}: {said}" if where else said)


def _line(tree: yaml.Node | None, place: tuple[str | int, ...]) -> int:
    """The line of the file on which the key at ``place`` stands, or the last part of it that there is.

    Pydantic's places also name which of several shapes was tried; no key is called so, and they are passed over.
    """
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


def _unknown(known: Mapping[str, Any], name: str) -> str:
    """What is wrong with the name of a figure; empty if nothing is."""
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
