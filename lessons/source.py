"""Files with front matter in YAML above a text in Markdown, and the error that an invalid one raises."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from lab.errors import LabError

FENCE = "---"


class LessonError(LabError):
    """An invalid lesson file. The message gives the file, the line, what is wrong and what would be right."""

    def __init__(self, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{path.name}, line {line}: {problem}")


@dataclass(frozen=True)
class Source:
    """``given`` is what the front matter says; ``body`` is the text below it, from line ``first`` on."""

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
            raise LessonError(
                path, 1, f"the file begins with a front matter: a line {FENCE}, YAML, and another {FENCE}."
            )
        source, body = rest
        try:
            given, tree = yaml.safe_load(source), yaml.compose(source, yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 2 if error.problem_mark else 2
            raise LessonError(path, line, f"the front matter is not YAML: {error.problem}.") from error
        except yaml.YAMLError as error:
            raise LessonError(path, 2, "the front matter is not YAML.") from error
        return cls(path, given, body, source.count("\n") + 3, tree)

    def error_of(self, error: ValidationError) -> LessonError:
        """The first of pydantic's errors as a sentence with its line."""
        found = error.errors()[0]
        where = [str(part) for part in found["loc"] if not str(part).startswith("function-")]
        said = found["msg"].removeprefix("Value error, ")
        return LessonError(self.path, self.line(found["loc"]), f"{'.'.join(where)}: {said}" if where else said)

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
