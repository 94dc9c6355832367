"""A lesson: what its file says, once all of it has been checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from lessons.experiments import Part, Preset
from lessons.expressions import Expression
from lessons.questions import AnyQuestion, Computed, Curve, Text
from lessons.template import Template
from lessons.units import Unit
from lessons.views import AnyView, Player

MINUTES = 60


class Shown(Part):
    """A figure that is compared before and after a change."""

    label: str
    value: Computed
    unit: Unit = "number"


class Change(Part):
    """One thing to change: what is laid over the preset, why, and the figures to look at.

    ``see`` says in a sentence what becomes of them. It may use the changed run's figures and, as ``before``, those of
    the run before.
    """

    title: str
    why: str
    change: dict[str, Any]
    shows: list[Shown] = Field(min_length=1, max_length=3)
    see: Text = Template("")


class PoolLink(Part):
    """Link to where a lesson's subject can be watched: a preset of the Pool page, by its key, and what to look for."""

    preset: str
    say: str


class FrontMatter(Part):
    """Everything above a lesson's text."""

    title: str
    minutes: int = Field(ge=1, le=MINUTES)
    needs: list[int] = Field(default=[])
    preset: Preset
    predict: AnyQuestion
    observe: list[AnyView] = Field(min_length=1, max_length=5)
    change: Change = Field(alias="try")
    check: AnyQuestion
    pool: list[PoolLink] = Field(default=[])

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Parts that do not fit together: the place of each, and what is wrong."""
        if not self.preset.experiments:
            yield "preset", f"there is no experiment; there are {', '.join(Preset.model_fields)}."
        for view in self.observe:
            if view.needs and view.needs not in self.preset.experiments:
                yield "observe", f"{view.view} shows {view.needs}, and the preset has none."
            elif isinstance(view, Player) and view.run not in self.preset.runs.settings:
                settings = ", ".join(self.preset.runs.settings)
                yield "observe", f"there is no setting {view.run!r} to play; there are {settings}."
        if not (self.check.near.text and self.check.far.text):
            yield "check", "it needs both near, said of a good answer, and far, said of any other."


@dataclass(frozen=True)
class Lesson:
    """``introduction`` comes first, ``explain`` after the run; both are Markdown, and so are the notes for the
    ``instructor``, which may be empty.

    ``number`` and ``name`` are those of the file, 02-name.md. ``changed``: the preset with the change to be tried.
    """

    number: int
    name: str
    front: FrontMatter
    changed: Preset
    introduction: str
    explain: Template
    instructor: Template

    def expressions(self) -> Iterator[tuple[str, Expression, Mapping[str, Any]]]:
        """Each expression with its place, and the names that it may use there."""
        front, known = self.front, names(self.front.preset)
        for where in ("predict", "check"):
            question = getattr(front, where)
            more = {"x": None} if isinstance(question, Curve) else {}
            for expression in question.answers:
                yield where, expression, known | more
            for text in (question.near, question.far):
                yield from ((where, expression, known) for expression in text.expressions)
        for view in front.observe:
            yield from (("observe", expression, known) for expression in view.expressions)
        after = names(self.changed)
        for shown in front.change.shows:
            yield from (("try.shows", shown.value, some) for some in (known, after))
        yield from (("try.see", expression, after | {"before": known}) for expression in front.change.see.expressions)
        for where in ("explain", "instructor"):
            yield from ((where, expression, known) for expression in getattr(self, where).expressions)


def names(preset: Preset) -> dict[str, Any]:
    """The names of every figure that a preset gives."""
    return {kind: experiment.names() for kind, experiment in preset.experiments.items()}


def overlaid(below: Any, above: Any) -> Any:
    """``above`` laid over ``below``: mappings key by key, where null removes a key; everything else as a whole."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    laid = {**below, **{key: overlaid(below.get(key), value) for key, value in above.items()}}
    return {key: value for key, value in laid.items() if value is not None}
