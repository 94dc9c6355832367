"""Views of a lesson's measurements, as JSON for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lab.measure.comparison import summarise, typical
from lab.measure.reference import reference, rounded
from lab.measure.scaling_fit import StepTimes
from lab.trace.run import Run
from lessons.experiments.base import Measured, spoken
from lessons.experiments.growth_experiments import NAMES
from lessons.experiments.rules import picture, variation
from lessons.lesson import AnyView, Lesson
from lessons.template import WRITE
from visualize.charts import lesson_charts, overlap_chart, theory_charts
from visualize.charts.base import Drawn, drawn
from visualize.reduce import compare_report as comparison
from visualize.reduce import theory_report as prediction

CHARTS = {
    "speed": lesson_charts.ratios_figure,
    **{name: theory_charts.CHARTS[name] for name in ("growth", "round", "tokens", "speedup", "positions")},
    "bars": lesson_charts.bars_figure,
    "distances": lesson_charts.distances_figure,
    "kept": lesson_charts.kept_figure,
    "narrowing": lesson_charts.narrowing_figure,
    "proposed": overlap_chart.proposed_figure,
    "written": overlap_chart.written_figure,
}
"""The figure of each view that is a chart; an overlap has two, "proposed" and "written"."""
TITLES = {
    "race": "Race",
    "player": "One run, step by step",
    "growth": "Time per token, by length",
    "round": "A full round, and as many tokens without draft tokens",
    "tokens": "Tokens per round",
    "speedup": "Speed-up",
    "positions": "Acceptance by position",
    "overlap": "p and q, word by word",
    "distances": "Distance from the target's distribution",
    "kept": "Memory kept, by the length of the text",
    "narrowing": "Ratio of each pair, and the interval of all pairs so far",
}
SPEED = "Each circle compares two runs of one repeat; each bar is the median of its circles, as in the text."
"""Said about every chart of speeds."""


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


def reference_views(lesson: Lesson) -> LessonViews | None:
    """Views of what the reference machine measured. None: nothing, or for other views than the lesson has now."""
    found = reference()
    stored = found and found.lessons.get(lesson.name)
    if not stored or [panel["view"] for panel in stored["panels"]] != [view.view for view in lesson.front.observe]:
        return None
    return LessonViews(stored["panels"], stored["played"] and Run.of(stored["played"]))


def with_reference(lesson: Lesson, panels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The panels, with the reference machine's measurement behind every chart that differs from it."""
    found = reference_views(lesson)
    return [_behind(*pair) for pair in zip(panels, found.panels, strict=True)] if found else list(panels)


def _behind(panel: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    chart, behind = panel.get("chart"), recorded.get("chart")
    if not (chart and behind) or rounded(chart["columns"]) == behind["columns"]:
        return panel
    said = f"{panel['say']} Grey: {reference().label}.".lstrip()
    return panel | {"chart": chart | {"reference": behind}, "say": said}


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
            return panel | {"title": view.title, "chart": _drawn(lesson_charts.bars_columns(values, view.unit))}
        case "speed":
            timed = {name: some for name, some in runs.items() if not some[0].sampling.logprobs}  # recording takes time
            first = view.against or next(iter(timed))
            found = summarise({first: timed[first]} | timed)
            chart = _drawn(lesson_charts.ratios_columns({spoken(name): found[name] for name in timed}))
            title = f"Speed / speed of {spoken(first)}"
            return panel | {"title": title, "say": f"{view.say} {SPEED}".lstrip(), "chart": chart}
        case "overlap":
            return panel | {"overlap": overlap_pictures(measured["rules"].figures["words"])}
        case "distances":
            return panel | {"chart": _drawn(lesson_charts.distances_columns(measured["rules"].figures))}
        case "kept":
            return panel | {"chart": _drawn(lesson_charts.kept_columns(measured["kept"].figures))}
        case "narrowing":
            return panel | {"chart": _drawn(lesson_charts.narrowing_columns(measured["noise"].figures))}
        case "growth":
            return panel | {"chart": _drawn(theory_charts.growth_columns(_curves(measured["growth"].figures)))}
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


def _drawn(chart: Drawn) -> dict[str, Any]:
    return drawn({"": chart})[""]


# -- p and q: for each rule, and with q moved towards p or away from it, all by calculation ------------

MOVES = [place / 5 for place in range(11)]
"""Where q may be moved: at 0 it equals p, at 1 it is as in the run, and there are places beyond."""
SAID = {
    "residual": "p has {residual} over q, exactly as much as is rejected. Drawing from that fills every gap.",
    "redrawn_from_p": "It draws again from all of p, though words that q proposes too often already have their share.",
    "without_q": "It does not look at q, and rejects even some of what both have in common.",
}
"""What the picture shows for each rule."""
NOTHING = 5e-4
"""Distances below this are not worth mentioning."""
percent = WRITE["percent"]


def overlap_pictures(words: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Every picture that can be chosen: ``frames`` by rule and by place of q, each {proposed, written, said}.

    Args:
        words: "p" and "q" of the run by word, as they were drawn. Every picture has them in falling order of p / q.
    """
    frames = {rule: [_overlap_frame(rule, words, to) for to in MOVES] for rule in SAID}
    apart, tops = [], []
    for frame in (frame for some in frames.values() for frame in some):
        apart.append(f"{frame.pop('apart')} apart")
        tops.append(frame.pop("top"))
    return {
        "rules": [lesson_charts.LINES[rule][0] for rule in SAID],
        "stops": apart[: len(MOVES)],
        "start": MOVES.index(1),
        "frames": list(frames.values()),
        "layout": overlap_chart.layout(len(words["p"]), max(tops)),
    }


def _overlap_frame(rule: str, words: Mapping[str, Sequence[float]], to: float) -> dict[str, Any]:
    p, q, kept, replaced = seen = picture(rule, words["p"], words["q"], to)
    written = [a + b for a, b in zip(kept, replaced, strict=True)]
    accepted, apart, off = sum(kept), variation(p, q), variation(p, written)
    end = "The written words follow p." if off < NOTHING else f"The written words are {percent(off)} away from p."
    said = f"Accepted: {percent(accepted)}, rejected: {percent(max(0.0, 1 - accepted))}."
    return {
        **overlap_chart.columns(*seen, residual=rule == "residual"),
        "said": f"{said} {SAID[rule].format(residual=percent(apart))} {end}",
        "apart": percent(apart),
        "top": max(*p, *q, *written),
    }
