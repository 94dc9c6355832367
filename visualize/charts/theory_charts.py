"""A round on a time axis, and the theory of speculation as curves with the measured runs on them.

A setting has the same mark everywhere on the page; curves carry their own names.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import plotly.graph_objects as go

from lab.engine.adaptive_window import tokens_per_round
from lab.measure.interval import share_interval
from lab.measure.theory import Speculated, speedup
from visualize.charts.base import axis_title, blank, look, nice_ceiling
from visualize.charts.curves import (
    Curves,
    Drawn,
    add_curve,
    curve_trace,
    join_points,
    mark_trace,
    name_trace,
    no_points,
    whisker_trace,
)
from visualize.charts.rounds_chart import LABELS
from visualize.charts.timing_chart import PARTS, part_colours

GAMMAS = (1, 2, 4, 8)
"""Gammas whose curves are always drawn."""
POINTS = 50
OTHER = "verdict, sampling and all else"
EVEN = "×1"
"""The name of the line where nothing is gained or lost."""

Marked = Mapping[str, Speculated]
"""Measurements by their setting's mark."""


def round_figure(dark: bool = False) -> go.Figure:
    """A round, part after part, above as many tokens one by one: two rows per setting, all on one time axis."""
    colours = part_colours(dark)
    bars = [
        go.Bar(
            name=part,
            orientation="h",
            width=0.72,
            marker={"color": colours[part], "line": {"width": 1.5, "color": look(dark).paper}},
            hovertemplate="%{customdata}<extra></extra>",
        )
        for part in PARTS
    ]
    return blank(
        [*bars, name_trace(dark).update(showlegend=False)],
        dark,
        barmode="overlay",
        margin={"l": 88, "r": 10, "t": 24, "b": 24},
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "itemclick": False},
        xaxis={"range": [0, 1], "nticks": 6, "ticksuffix": " ms", "fixedrange": True},
        yaxis={"range": [1.5, -0.5], "showgrid": False, "fixedrange": True},
    )


def round_columns(found: Marked) -> Drawn:
    bars = {part: {"x": [], "base": [], "y": [], "customdata": []} for part in PARTS}
    names, ticks, rows, longest = no_points() | {"text": []}, [], [], 0.0
    for i, (mark, one) in enumerate(found.items()):
        drafting = [("draft", one.round.draft / one.gamma, "a draft token")] * one.gamma
        judging = [("target", one.round.target, f"the target's pass over {one.gamma + 1} tokens")]
        step = [("target", one.plain.target, "the target's pass over one token"), ("other", one.plain.other, OTHER)]
        share = one.tokens % 1  # tokens per round are a mean
        alone = int(one.tokens) * step + [(part, share * ms, f"{share:.0%} of {what}") for part, ms, what in step]
        guessed = [*drafting, *judging, ("other", one.round.other, OTHER)]
        for name, row, boxes in (
            (f"{mark} {one.tokens:.1f} tokens", 2.4 * i, guessed),
            ("one by one", 2.4 * i + 1, alone),
        ):
            at = 0.0
            for part, ms, what in boxes:
                for column, value in zip(bars[part].values(), (ms, at, row, f"{what}: {ms:.2f} ms"), strict=True):
                    column.append(value)
                at += ms
            names["x"].append(at)
            names["y"].append(row)
            names["text"].append(f" {at:.2f} ms")
            ticks.append(name)
            rows.append(row)
            longest = max(longest, at)
    return [*bars.values(), names], {
        "xaxis.range": [0, 1.25 * longest or 1],
        "yaxis.range": [max(rows, default=1) + 0.5, -0.5],
        "yaxis.tickvals": rows,
        "yaxis.ticktext": ticks,
    }


def tokens_figure(dark: bool = False) -> go.Figure:
    """Tokens per round against acceptance, one curve per gamma."""
    marks = mark_trace(dark, "a = %{x:.3f}: %{y:.2f} tokens per round, measured")
    return _against_acceptance([curve_trace(dark), name_trace(dark), marks], dark, {"range": [0, 9]})


def tokens_columns(found: Marked) -> Drawn:
    curves, most = (no_points(), no_points()), max(_gammas(found))
    for gamma in _gammas(found):
        _over_acceptance(curves, gamma, tokens_per_round)
    marks = {
        "x": [one.acceptance for one in found.values()],
        "y": [one.tokens for one in found.values()],
        "text": list(found),
    }
    return [*curves, marks], {"yaxis.range": [0.5, most + 1.8]}


def speedup_figure(dark: bool = False) -> go.Figure:
    """Speed-up against gamma, one curve per setting: what its acceptance and cost predict."""
    return blank(
        [curve_trace(dark), name_trace(dark), whisker_trace(dark), mark_trace(dark, "γ %{x}: ×%{y:.2f}, measured")],
        dark,
        margin={"l": 40, "r": 34, "t": 8, "b": 36},
        xaxis={"range": [0.5, 8.5], "dtick": 1, "title": axis_title("draft tokens per round γ", dark)},
        yaxis={"range": [0, 2], "nticks": 6, "tickprefix": "×"},
    )


def speedup_columns(found: Marked) -> Drawn:
    widest = max(_gammas(found))
    curves, whiskers, tops = (no_points(), no_points()), no_points(), [1.0]
    add_curve(curves, [1, 1.1 * widest], [1.0, 1.0], EVEN)
    for mark, one in found.items():
        ys = [speedup(one.acceptance, gamma, one.cost) for gamma in range(1, widest + 1)]
        add_curve(curves, list(range(1, widest + 1)), ys, mark)
        join_points(whiskers, [one.gamma] * 2, [one.speedup.lower, one.speedup.upper])
        tops += [*ys, one.speedup.upper]
    curves[1]["x"][1:] = [1.04 * widest] * len(found)  # clear of the marks at the last gamma, and of the name ×1
    marks = {
        "x": [one.gamma for one in found.values()],
        "y": [one.speedup.median for one in found.values()],
        "text": list(found),
    }
    return [*curves, whiskers, marks], {
        "xaxis.range": [0.5, 1.11 * widest],
        "xaxis.dtick": math.ceil(widest / LABELS),
        "yaxis.range": [0, nice_ceiling(1.05 * max(tops))],
    }


def gains_figure(dark: bool = False) -> go.Figure:
    """Speed-up against acceptance, one curve per gamma."""
    marks = mark_trace(dark, "a = %{x:.3f}: ×%{y:.2f}, measured")
    traces = [curve_trace(dark), name_trace(dark), whisker_trace(dark), marks]
    return _against_acceptance(traces, dark, {"range": [0, 2], "tickprefix": "×"})


def gains_columns(found: Marked) -> Drawn:
    """The curves are for one cost of a guess: the settings' median."""
    curves, whiskers, top = (no_points(), no_points()), no_points(), 1.0
    if found:
        cost = statistics.median(one.cost for one in found.values())
        add_curve(curves, [0, 1], [1.0, 1.0], EVEN)
        for gamma in _gammas(found):
            _over_acceptance(curves, gamma, lambda a, gamma: speedup(a, gamma, cost))
        top = max(curves[1]["y"])  # every curve is highest at its end
    for one in found.values():
        join_points(whiskers, [one.acceptance] * 2, [one.speedup.lower, one.speedup.upper])
        top = max(top, one.speedup.upper)
    marks = {
        "x": [one.acceptance for one in found.values()],
        "y": [one.speedup.median for one in found.values()],
        "text": list(found),
    }
    return [*curves, whiskers, marks], {"yaxis.range": [0, nice_ceiling(1.05 * top)]}


def positions_figure(dark: bool = False) -> go.Figure:
    """Acceptance of judged guesses by position; in theory it is the same at all of them."""
    return blank(
        [
            curve_trace(dark),
            name_trace(dark),
            whisker_trace(dark),
            mark_trace(dark, "draft token %{x:.0f}: %{customdata}"),
        ],
        dark,
        margin={"l": 44, "r": 34, "t": 8, "b": 36},
        xaxis={"range": [0.5, 4.5], "dtick": 1, "title": axis_title("position in the round", dark)},
        yaxis={"range": [0, 1.12], "dtick": 0.25, "tickformat": ".0%"},
    )


def positions_columns(found: Marked) -> Drawn:
    """With Wilson intervals, as if guesses were independent. Within one text they are not, and a single text cannot
    show how much they depend on each other: the intervals are too narrow. Settings are drawn slightly side by side."""
    curves, whiskers = (no_points(), no_points()), no_points()
    marks: dict[str, list[Any]] = {"x": [], "y": [], "text": [], "customdata": []}
    for place, (mark, one) in enumerate(found.items()):
        beside = 0.12 * (place - (len(found) - 1) / 2)
        add_curve(curves, [0.7, one.gamma + 0.3], [one.acceptance] * 2, mark)
        for position, (accepted, judged) in enumerate(zip(one.accepted, one.judged, strict=True), 1):
            if not judged:
                continue
            sure = share_interval(accepted, judged)
            x = position + beside
            join_points(whiskers, [x, x], [sure.low, sure.high])
            marks["x"].append(x)
            marks["y"].append(accepted / judged)
            marks["text"].append(mark)
            marks["customdata"].append(
                f"{accepted} of {judged} accepted<br>95% if independent: {sure.low:.0%} to {sure.high:.0%} "
                "(Wilson, 95%)"
            )
    widest = max((one.gamma for one in found.values()), default=4)
    return [*curves, whiskers, marks], {
        "xaxis.range": [0.5, widest + 0.7],
        "xaxis.dtick": math.ceil(widest / LABELS),
    }


def columns(found: Marked) -> dict[str, Drawn]:
    """The data and axes of all charts of theory."""
    return {
        "round": round_columns(found),
        "tokens": tokens_columns(found),
        "speedup": speedup_columns(found),
        "gains": gains_columns(found),
        "positions": positions_columns(found),
    }


def _gammas(found: Marked) -> list[int]:
    return sorted({*GAMMAS, *(one.gamma for one in found.values())})


def _against_acceptance(traces: list[go.Scatter], dark: bool, yaxis: dict[str, Any]) -> go.Figure:
    return blank(
        traces,
        dark,
        margin={"l": 40, "r": 34, "t": 8, "b": 36},
        xaxis={"range": [0, 1], "nticks": 6, "title": axis_title("acceptance a", dark)},
        yaxis={"nticks": 6, **yaxis},
    )


def _over_acceptance(curves: Curves, gamma: int, of: Callable[[float, int], float]) -> None:
    """Add a gamma's curve of ``of(acceptance, gamma)``."""
    xs = [i / POINTS for i in range(POINTS + 1)]
    add_curve(curves, xs, [of(x, gamma) for x in xs], f"γ {gamma}")
