"""Views of a lesson's measurements, as JSON for the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lab.measure.comparison import summarise, typical
from lab.measure.scaling_fit import StepTimes
from lab.trace.run import Run
from lessons.experiments.base import Measured, spoken
from lessons.experiments.growth_experiments import NAMES
from lessons.lesson import AnyView, Lesson
from visualize.charts import compare_charts as compare_figures
from visualize.charts import length_charts as length_figures
from visualize.charts import lesson_charts as lesson_figures
from visualize.charts import looks
from visualize.charts import overlap_chart as overlap_figures
from visualize.charts import theory_charts as theory_figures
from visualize.pages.lessons import overlap_demo as overlap
from visualize.reduce import compare_report as comparison
from visualize.reduce import theory_report as prediction

CHARTS = {
    "speed": compare_figures.bars_figure,
    "growth": length_figures.growth_figure,
    "round": theory_figures.round_figure,
    "tokens": theory_figures.tokens_figure,
    "speedup": theory_figures.speedup_figure,
    "positions": theory_figures.positions_figure,
    "bars": lesson_figures.bars_figure,
    "distances": lesson_figures.distances_figure,
    "proposed": overlap_figures.proposed_figure,
    "written": overlap_figures.written_figure,
}
"""The figure of each view that is a chart; an overlap has two, "proposed" and "written"."""
TITLES = {
    "race": "Race",
    "player": "One run, step by step",
    "speed": "Speed, tokens a second",
    "growth": "Time per token, by length",
    "round": "A full round, and as many tokens without guesses",
    "tokens": "Tokens per round",
    "speedup": "Speed-up",
    "positions": "Acceptance by position",
    "overlap": "p and q, word by word",
    "distances": "Distance from the target's distribution",
}
SPEED = (
    "Each bar is the median of its runs, each circle one run. Speed-ups (×), here and in the text, are worked out in "
    "each repeat, and the median is taken: dividing two bars may give something else."
)
"""Said about every chart of speeds."""


def shells() -> dict[str, dict[str, Any]]:
    """Every chart's empty figure in both looks, as JSON for the page."""
    return {name: looks(make) for name, make in CHARTS.items()}


class LessonViews(NamedTuple):
    """``panels``: one for each view, {view, title, say} with ``chart``, {columns, layout}, ``overlap`` or ``race``.
    ``played``: the run to play, if there is one."""

    panels: list[dict[str, Any]]
    played: Run | None


def seen(lesson: Lesson, measured: Mapping[str, Measured]) -> LessonViews:
    """Everything there is to observe."""
    views = lesson.front.observe
    player = next((view for view in views if view.view == "player"), None)
    played = typical(measured["runs"].runs[player.run]) if player else None
    return LessonViews([_panel(view, lesson, measured) for view in views], played)


def _panel(view: AnyView, lesson: Lesson, measured: Mapping[str, Measured]) -> dict[str, Any]:
    panel: dict[str, Any] = {"view": view.view, "title": TITLES.get(view.view, ""), "say": view.say}
    runs = measured["runs"].runs if "runs" in measured else {}
    match view.view:
        case "player":
            return panel | {"say": f"{view.say} {_which_of(len(runs[view.run]))}".rstrip()}
        case "race":
            return panel | {"race": comparison.race({spoken(name): typical(some) for name, some in runs.items()})}
        case "bars":
            figures = {kind: found.figures for kind, found in measured.items()}
            values = {name: expression.number(figures) for name, expression in view.bars.items()}
            return panel | {"title": view.title, "chart": _drawn(lesson_figures.bars_columns(values, view.unit))}
        case "speed":
            named = {spoken(name): some for name, some in runs.items()}
            chart = _drawn(compare_figures.bars(list(named), summarise(named)))
            return panel | {"say": f"{view.say} {SPEED}".lstrip(), "chart": chart}
        case "overlap":
            return panel | {"overlap": overlap.pictures(measured["rules"].figures["words"])}
        case "distances":
            return panel | {"chart": _drawn(lesson_figures.distances_columns(measured["rules"].figures))}
        case "growth":
            return panel | {"chart": _drawn(length_figures.growth_columns(_curves(measured["growth"].figures)))}
    return panel | {"chart": _theory(lesson, runs)[view.view]}


def _which_of(repeats: int) -> str:
    """Words for the run of a setting that the player shows."""
    if repeats == 1:
        return ""
    return f"This is the one of median speed among {repeats} runs; the figures in the text are taken from all of them."


def _theory(lesson: Lesson, runs: Mapping[str, list[Run]]) -> dict[str, Any]:
    """The charts of theory. Runs whose distributions were recorded are left out: recording distorts their times."""
    runs = {name: some for name, some in runs.items() if not some[0].sampling.logprobs}
    configs = {name: lesson.front.preset.runs.config(name) for name in runs}
    return prediction.theory(configs, runs, {})["charts"]


def _curves(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, StepTimes]:
    return {name: StepTimes(tuple(figures[own]["lengths"]), tuple(figures[own]["ms"])) for own, name in NAMES.items()}


def _drawn(chart: tuple[Any, dict[str, Any]]) -> dict[str, Any]:
    columns, layout = chart
    return {"columns": columns, "layout": layout}
