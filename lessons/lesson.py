"""A lesson: its front matter, with questions before and after the run and views of its results, and its texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from lessons.experiments import Preset
from lessons.experiments.base import Part
from lessons.expressions import Expression, Figures
from lessons.template import Template, Unit

ROOT = Path(__file__).parents[1]
Computed = Annotated[Expression, PlainValidator(Expression)]
Text = Annotated[Template, PlainValidator(Template)]


# -- questions -------------------------------------------------------------------------------


def _tolerance(given: object) -> object:
    """Read a tolerance: ``25%`` of the answer, or a plain number in the question's own unit."""
    if isinstance(given, str) and given.endswith("%") and given[:-1].replace(".", "", 1).isdecimal():
        return {"share": float(given[:-1]) / 100}
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


class Reply(Part):
    """A reply to one kind of wrong answer, known by ``when``. Besides figures that may name ``given`` and ``right``;
    of a curve ``first``, ``last``, ``right_first`` and ``right_last``, its ends."""

    when: Computed
    say: Text


class Question(Part):
    """``near`` or ``far`` is said after the right answer; the first of the ``replies`` that fits replaces ``far``."""

    question: Text
    near: Text = Template("")
    far: Text = Template("")
    replies: list[Reply] = Field(default=[])

    def reply(self, answer: Answer, right: Answer, figures: Figures) -> Text:
        """The reply to a wrong answer."""
        ends = self.ends(answer, right)
        return next((reply.say for reply in self.replies if reply.when.holds({**figures, **ends})), self.far)

    def ends(self, answer: Answer, right: Answer) -> dict[str, float]:
        """An answer and the right one, by the names that a reply may use."""
        return {"given": answer, "right": right}


class _OnAScale(Question):
    """A quantity from a range, on a linear or a logarithmic scale."""

    label: str
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
        """Expressions that the answer is computed from."""
        return [self.answer]


class Slider(_OnAScale):
    """One number."""

    kind: Literal["slider"]


class Axis(Part):
    """``at``: the places at which a curve has points; ``label`` says what they are."""

    label: str
    at: list[float] = Field(min_length=3, max_length=9)


class Curve(_OnAScale):
    """A number at each of a few places ``x``; ``answer`` is computed at each."""

    kind: Literal["curve"]
    x: Axis

    def ends(self, answer: Answer, right: Answer) -> dict[str, float]:
        return {"first": answer[0], "last": answer[-1], "right_first": right[0], "right_last": right[-1]}

    @model_validator(mode="after")
    def _in_order(self) -> Curve:
        if self.x.at != sorted(set(self.x.at)):
            raise ValueError("x.at is a list of rising numbers, as [50, 100, 200].")
        return self


class Option(Part):
    """``when`` holds for the figures if this is the right one; it never does unless it is given. ``say``: the reply to
    somebody who chose it and was wrong; otherwise ``far`` is."""

    text: str
    when: Computed = Expression("0 > 1")
    say: Text = Template("")


class Choice(Question):
    """One of a few options. The right one is the first whose ``when`` holds."""

    kind: Literal["choice"]
    options: list[Option] = Field(min_length=2, max_length=6)

    @property
    def answers(self) -> list[Expression]:
        return [option.when for option in self.options]

    def reply(self, answer: Answer, right: Answer, figures: Figures) -> Text:
        return self.options[answer].say if self.options[answer].say.text else self.far


AnyQuestion = Annotated[Slider | Curve | Choice, Field(discriminator="kind")]
Answer = float | list[float] | int
"""What a learner gives: a number, a curve's numbers, or an option's place from 0."""


# -- views -----------------------------------------------------------------------------------


class Player(Part):
    """A setting's run (the one of median speed), step by step. ``say``, of any view: what to look for."""

    view: Literal["player"]
    say: str = ""
    run: str


class Speed(Part):
    """The speed of every setting, over that of the setting it is ``against`` (the first one) in the same repeat."""

    view: Literal["speed"]
    say: str = ""
    against: str | None = None


class Chart(Part):
    """Everything that an experiment found: runs on one clock (``race``); a token's time by length (``growth``), or
    the bytes that are ``kept``; ratios of pairs of runs (``narrowing``); a ``round`` on a clock, or curves of theory
    with the runs on them (``tokens`` per round, ``speedup``, acceptance by ``positions``); p and q word by word, to be
    moved (``overlap``), and each rule's distance from p."""

    view: Literal[
        "race", "growth", "round", "tokens", "speedup", "positions", "overlap", "distances", "kept", "narrowing"
    ]
    say: str = ""


class Bars(Part):
    """Any figures, side by side."""

    view: Literal["bars"]
    say: str = ""
    title: str
    unit: Unit = "number"
    bars: dict[str, Computed] = Field(min_length=1, max_length=8)


AnyView = Annotated[Player | Speed | Chart | Bars, Field(discriminator="view")]
NEEDED = {
    "growth": "growth",
    "kept": "kept",
    "narrowing": "noise",
    "overlap": "rules",
    "distances": "rules",
    "bars": None,
}
"""The experiment that a view shows, if it is not ``runs``."""


# -- lessons ---------------------------------------------------------------------------------


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


class Drawing(Part):
    """The figure in the introduction: recorded ``runs`` (``docs/record_figures.py``) by what they are called in it, and
    in ``say`` what it shows. ``cache``: keys and values as passes compute them; ``table``: block tables and the pool;
    ``prefixes``: the tree of shared blocks; ``batch``: which requests are in each step; ``round``: a round in phases;
    ``verdict``: p, q and the residual of draft tokens; ``kept``: bytes that kinds of layers keep of a growing text;
    ``ruler``: numbers of a key before and after they are rounded; ``passes``: bytes and operations of the same tokens
    with and without draft tokens; ``ladder``: what each setting spends on them; ``users``: a pass by its requests;
    ``order``: runs of one setting, labelled in blocks and in turns;
    ``widths``: the tokens in each step."""

    draws: Literal[
        "cache",
        "table",
        "prefixes",
        "batch",
        "round",
        "verdict",
        "kept",
        "ruler",
        "passes",
        "ladder",
        "users",
        "order",
        "widths",
    ]
    say: str
    runs: dict[str, str] = Field(min_length=1)


class PoolLink(Part):
    """Link to where a lesson's subject can be watched: a preset of the Pool page, by its key, and what to look for."""

    preset: str
    say: str


class Beyond(Part):
    """The next steps: ``code`` that runs as it stands, what to look at in ``vllm`` (Markdown), and ``files`` of this
    repository to read."""

    code: str
    vllm: str
    files: list[str] = Field(min_length=1, max_length=4)

    @model_validator(mode="after")
    def _sound(self) -> Beyond:
        lines = [line for line in self.code.splitlines() if line.strip()]
        if not 3 <= len(lines) <= 10:
            raise ValueError(f"code has 3 to 10 lines that are not empty, not {len(lines)}.")
        return self

    def markdown(self, number: int) -> str:
        """All of it, with the files' sizes."""
        sizes = {
            name: len((ROOT / name).read_text("utf-8").splitlines()) for name in self.files if (ROOT / name).is_file()
        }
        files = " · ".join(f"`{name}` ({lines} lines)" for name, lines in sizes.items())
        return (
            f"### In code\n\n`python -m lessons run {number}` runs this:\n\n```python\n{self.code.strip()}\n```\n\n"
            f"### In vLLM\n\n{self.vllm}\n\n### Files to read\n\n{files}"
        )


class FrontMatter(Part):
    """Everything above a lesson's text."""

    title: str
    minutes: int = Field(ge=1, le=60)
    needs: list[int] = Field(default=[])
    preset: Preset
    predict: AnyQuestion
    observe: list[AnyView] = Field(min_length=1, max_length=5)
    change: Change = Field(alias="try")
    check: AnyQuestion
    pool: list[PoolLink] = Field(default=[])
    figure: Drawing | None = None
    beyond: Beyond | None = None

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Parts that do not fit together: the place of each, and what is wrong."""
        experiments = self.preset.experiments
        if not experiments:
            yield "preset", f"there is no experiment; there are {', '.join(Preset.model_fields)}."
        for view in self.observe:
            needed = NEEDED.get(view.view, "runs")
            if needed and needed not in experiments:
                yield "observe", f"{view.view} shows {needed}, and the preset has none."
            else:
                named = view.run if isinstance(view, Player) else view.against if isinstance(view, Speed) else None
                if named and named not in (settings := self.preset.runs.settings):
                    yield "observe", f"there is no setting {named!r} to show; there are {', '.join(settings)}."
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
        front, known, after = self.front, names(self.front.preset), names(self.changed)
        for where in ("predict", "check"):
            question = getattr(front, where)
            more = {"x": None} if isinstance(question, Curve) else {}
            yield from ((where, expression, known | more) for expression in question.answers)
            ends = dict.fromkeys(question.ends([0.0], [0.0]))
            yield from ((where, reply.when, known | ends) for reply in question.replies)
            said = [option.say for option in question.options] if isinstance(question, Choice) else []
            for text in (question.near, question.far, *(reply.say for reply in question.replies), *said):
                yield from ((where, expression, known) for expression in text.expressions)
        for view in front.observe:
            bars = view.bars.values() if isinstance(view, Bars) else ()
            yield from (("observe", expression, known) for expression in bars)
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
