"""Questions before and after a run: a number, one of a few options, or a curve."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from lessons.experiments.base import Part
from lessons.expressions import Expression
from lessons.template import Template
from lessons.units import Unit

Computed = Annotated[Expression, PlainValidator(Expression)]
Text = Annotated[Template, PlainValidator(Template)]


def _tolerance(given: object) -> object:
    """Read a tolerance: ``25%`` of the answer, or a plain number in the question's own unit."""
    if isinstance(given, str) and given.endswith("%"):
        try:
            return {"share": float(given[:-1]) / 100}
        except ValueError:
            pass
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return {"within": float(given)}
    raise ValueError(f"a tolerance is a share of the answer, as 25%, or a number in the unit asked for, not {given!r}.")


class Tolerance(Part):
    """Largest error of an answer that still counts as near: a share of the right one, or a distance from it."""

    share: float | None = Field(default=None, gt=0)
    within: float | None = Field(default=None, gt=0)

    def __call__(self, given: float, right: float) -> bool:
        allowed = self.within if self.share is None else self.share * abs(right)
        return abs(given - right) <= allowed


class Question(Part):
    """``near`` or ``far`` is said after the right answer has been told."""

    question: Text
    near: Text = Template("")
    far: Text = Template("")

    @property
    def answers(self) -> list[Expression]:
        """Expressions that the answer is computed from."""
        raise NotImplementedError


class _OnAScale(Question):
    """A quantity from a range, on a linear or a logarithmic scale."""

    unit: Unit = "number"
    range: list[float] = Field(min_length=2, max_length=2)
    scale: Literal["linear", "log"] = "linear"
    answer: Computed
    tolerance: Annotated[Tolerance, BeforeValidator(_tolerance)]

    @model_validator(mode="after")
    def _rising(self) -> _OnAScale:
        low, high = self.range
        if not low < high or (self.scale == "log" and low <= 0):
            raise ValueError("range is the least and the most, as [1, 100]; on a log scale both above 0.")
        return self

    @property
    def answers(self) -> list[Expression]:
        return [self.answer]


class Slider(_OnAScale):
    """One number."""

    kind: Literal["slider"]
    label: str


class Axis(Part):
    """``at``: the places at which a curve has points; ``label`` says what they are."""

    label: str
    at: list[float] = Field(min_length=3, max_length=9)


class Curve(_OnAScale):
    """A number at each of a few places ``x``; ``answer`` is computed at each."""

    kind: Literal["curve"]
    label: str
    x: Axis

    @model_validator(mode="after")
    def _in_order(self) -> Curve:
        if self.x.at != sorted(set(self.x.at)):
            raise ValueError("x.at is a list of rising numbers, as [50, 100, 200].")
        return self


class Option(Part):
    """``when`` holds for the figures if this is the right one."""

    text: str
    when: Computed


class Choice(Question):
    """One of a few options. The right one is the first whose ``when`` holds."""

    kind: Literal["choice"]
    options: list[Option] = Field(min_length=2, max_length=6)

    @property
    def answers(self) -> list[Expression]:
        return [option.when for option in self.options]


AnyQuestion = Annotated[Slider | Curve | Choice, Field(discriminator="kind")]
Answer = float | list[float] | int
"""What a learner gives: a number, a curve's numbers, or an option's place from 0."""
