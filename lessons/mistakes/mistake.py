"""A mistake: code of ours with a fault, three repairs of which one is right, and what to say of them.

What is shown is what runs: a variant is the sample's own text, with the faulty lines replaced by a repair's.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
HOLE = "raise NotImplementedError"


@dataclass(frozen=True)
class Repair:
    """``code`` stands in place of the fault; ``reply`` says why it is right or not."""

    code: str
    reply: str
    right: bool = False


@dataclass(frozen=True)
class Mistake:
    """A card of the page, and an exercise.

    Attributes:
        number: from 1, in the order of the cards.
        lesson: the lesson that it belongs to.
        does: what the code is for.
        fault: the lines of ``samples/<id>.py`` that are wrong.
        hole: what to write in their place, for the exercise.
        why: what goes wrong, said after the evidence.
    """

    id: str
    number: int
    title: str
    lesson: int
    does: str
    fault: str
    hole: str
    why: str
    repairs: tuple[Repair, ...]

    @property
    def sample(self) -> str:
        """The whole file with the fault."""
        return (FOLDER / "samples" / f"{self.id}.py").read_text("utf-8")

    @property
    def right(self) -> int:
        """The place of the right repair."""
        return next(i for i, repair in enumerate(self.repairs) if repair.right)

    def source(self, repair: int | None) -> str:
        """The file with a repair; None: with the fault."""
        return self.sample if repair is None else self.sample.replace(self.fault, self.repairs[repair].code)

    def program(self, repair: int | None) -> dict[str, Any]:
        """The names that the file with this repair defines. Only text of this repository is executed."""
        names: dict[str, Any] = {}
        exec(compile(self.source(repair), f"{self.id}.py", "exec"), names)
        return names

    def starter(self) -> str:
        """The exercise: the file with a hole in place of the fault."""
        indent = self.fault[: len(self.fault) - len(self.fault.lstrip(" "))]
        lines = [f"# {line}" for line in self.hole.replace(". ", ".\n").splitlines()]
        return self.sample.replace(self.fault, "".join(f"{indent}{line}\n" for line in [*lines, HOLE]))


class HiddenTest(NamedTuple):
    """A hidden test and what it found wrong; empty: nothing."""

    test: str
    problem: str


def _read() -> dict[str, Mistake]:
    found = tomllib.loads((FOLDER / "mistakes.toml").read_text("utf-8"))
    return {
        id: Mistake(id=id, number=number, **{**one, "repairs": tuple(Repair(**repair) for repair in one["repairs"])})
        for number, (id, one) in enumerate(found.items(), 1)
    }


MISTAKES = _read()
"""All mistakes by their id."""
