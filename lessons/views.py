"""Views of a lesson's results. ``say`` is what to look for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lessons.experiments.base import Part
from lessons.expressions import Expression
from lessons.questions import Computed
from lessons.units import Unit


class View(Part):
    """``needs``: the experiment that it shows."""

    say: str = ""

    @property
    def needs(self) -> str | None:
        return "runs"

    @property
    def expressions(self) -> list[Expression]:
        return []


class Player(View):
    """A setting's run (the one of median speed), step by step."""

    view: Literal["player"]
    run: str


class Race(View):
    """A run of each setting on one clock."""

    view: Literal["race"]


class Speed(View):
    """Tokens per second of each setting."""

    view: Literal["speed"]


class GrowthChart(View):
    """A token's time by length."""

    view: Literal["growth"]

    @property
    def needs(self) -> str | None:
        return "growth"


class Theory(View):
    """A ``round`` on a clock; or curves with the runs on them: ``tokens`` per round, ``speedup``, or acceptance by
    ``positions``."""

    view: Literal["round", "tokens", "speedup", "positions"]


class Overlap(View):
    """p and q word by word, what a rule accepts and what comes out; q can be moved and the rule chosen."""

    view: Literal["overlap"]

    @property
    def needs(self) -> str | None:
        return "rules"


class Distances(View):
    """Distance of each rule's outcome from p, draw by draw."""

    view: Literal["distances"]

    @property
    def needs(self) -> str | None:
        return "rules"


class Bars(View):
    """Any figures, side by side."""

    view: Literal["bars"]
    title: str
    unit: Unit = "number"
    bars: dict[str, Computed] = Field(min_length=1, max_length=8)

    @property
    def needs(self) -> str | None:
        return None

    @property
    def expressions(self) -> list[Expression]:
        return list(self.bars.values())


AnyView = Annotated[
    Player | Race | Speed | GrowthChart | Theory | Overlap | Distances | Bars, Field(discriminator="view")
]
