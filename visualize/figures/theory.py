"""A round on a clock, speculation's curves with the runs on them, and milliseconds a token by length.

A setting is a mark, the same one everywhere on the page; curves carry their own names.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import plotly.graph_objects as go

from lab.bench.growth import CACHED, UNCACHED, Curve
from lab.bench.interval import share_interval
from lab.bench.theory import Speculated, speedup
from lab.decode.window import tokens_per_round
from visualize.amounts import byte_unit, digits
from visualize.figures.base import Columns, axis_title, blank, look, looks, nice_ceiling
from visualize.figures.compare import bars_figure
from visualize.figures.timing import PARTS, part_colours
from visualize.vocabulary import KV_FORMATS, OWN

GAMMAS = (1, 2, 4, 8)
"""Curves that are always there."""
POINTS = 50
OTHER = "verdict, sampling and all else"
EVEN = "×1"
"""The name of the line where nothing is gained or lost."""

Marked = Mapping[str, Speculated]
"""By the setting's mark."""
Drawn = tuple[Columns, dict[str, Any]]
Curves = tuple[dict[str, list[Any]], dict[str, list[Any]]]
"""Lines, and their names."""


def round_figure(dark: bool = False) -> go.Figure:
    """A round, part after part, above as many tokens one by one: two rows a setting, all on one clock."""
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
        [*bars, _names(dark).update(showlegend=False)],
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
    names, ticks, rows, longest = _empty() | {"text": []}, [], [], 0.0
    for i, (mark, one) in enumerate(found.items()):
        drafting = [("draft", one.round.draft / one.gamma, "a guess")] * one.gamma
        judging = [("target", one.round.target, f"the target's pass over {one.gamma + 1} tokens")]
        step = [("target", one.plain.target, "the target's pass over one token"), ("other", one.plain.other, OTHER)]
        share = one.tokens % 1  # what a round gives is a mean
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
    """Tokens a round against acceptance, a curve a gamma."""
    marks = _marks(dark, "a = %{x:.3f}: %{y:.2f} tokens a round, measured")
    return _against_acceptance([_curves(dark), _names(dark), marks], dark, {"range": [0, 9]})


def tokens_columns(found: Marked) -> Drawn:
    curves, most = (_empty(), _empty()), max(_gammas(found))
    for gamma in _gammas(found):
        _over_acceptance(curves, gamma, tokens_per_round)
    marks = {
        "x": [one.acceptance for one in found.values()],
        "y": [one.tokens for one in found.values()],
        "text": list(found),
    }
    return [*curves, marks], {"yaxis.range": [0.5, most + 1.8]}


def speedup_figure(dark: bool = False) -> go.Figure:
    """Speed-up against gamma, a curve a setting: what its acceptance and its cost promise."""
    return blank(
        [_curves(dark), _names(dark), _whiskers(dark), _marks(dark, "γ %{x}: ×%{y:.2f}, measured")],
        dark,
        margin={"l": 40, "r": 34, "t": 8, "b": 36},
        xaxis={"range": [0.5, 8.5], "dtick": 1, "title": axis_title("guesses a round γ", dark)},
        yaxis={"range": [0, 2], "nticks": 6, "tickprefix": "×"},
    )


def speedup_columns(found: Marked) -> Drawn:
    widest = max(_gammas(found))
    curves, whiskers, tops = (_empty(), _empty()), _empty(), [1.0]
    _line(curves, [1, 1.1 * widest], [1.0, 1.0], EVEN)
    for mark, one in found.items():
        ys = [speedup(one.acceptance, gamma, one.cost) for gamma in range(1, widest + 1)]
        _line(curves, list(range(1, widest + 1)), ys, mark)
        _join(whiskers, [one.gamma] * 2, [one.speedup.lower, one.speedup.upper])
        tops += [*ys, one.speedup.upper]
    curves[1]["x"][1:] = [1.04 * widest] * len(found)  # clear of the marks at the last gamma, and of the name before
    marks = {
        "x": [one.gamma for one in found.values()],
        "y": [one.speedup.median for one in found.values()],
        "text": list(found),
    }
    return [*curves, whiskers, marks], {
        "xaxis.range": [0.5, 1.11 * widest],
        "yaxis.range": [0, nice_ceiling(1.05 * max(tops))],
    }


def gains_figure(dark: bool = False) -> go.Figure:
    """Speed-up against acceptance, a curve a gamma."""
    marks = _marks(dark, "a = %{x:.3f}: ×%{y:.2f}, measured")
    traces = [_curves(dark), _names(dark), _whiskers(dark), marks]
    return _against_acceptance(traces, dark, {"range": [0, 2], "tickprefix": "×"})


def gains_columns(found: Marked) -> Drawn:
    """Where settings differ in what a guess costs, the curves are of the cost in the middle."""
    curves, whiskers, top = (_empty(), _empty()), _empty(), 1.0
    if found:
        cost = statistics.median(one.cost for one in found.values())
        _line(curves, [0, 1], [1.0, 1.0], EVEN)
        for gamma in _gammas(found):
            _over_acceptance(curves, gamma, lambda a, gamma: speedup(a, gamma, cost))
        top = max(curves[1]["y"])  # every curve is highest at its end
    for one in found.values():
        _join(whiskers, [one.acceptance] * 2, [one.speedup.lower, one.speedup.upper])
        top = max(top, one.speedup.upper)
    marks = {
        "x": [one.acceptance for one in found.values()],
        "y": [one.speedup.median for one in found.values()],
        "text": list(found),
    }
    return [*curves, whiskers, marks], {"yaxis.range": [0, nice_ceiling(1.05 * top)]}


def positions_figure(dark: bool = False) -> go.Figure:
    """Acceptance of what was judged, by position; the theory's is the same at all."""
    return blank(
        [_curves(dark), _names(dark), _whiskers(dark), _marks(dark, "guess %{x:.0f}: %{customdata}")],
        dark,
        margin={"l": 44, "r": 34, "t": 8, "b": 36},
        xaxis={"range": [0.5, 4.5], "dtick": 1, "title": axis_title("position in the round", dark)},
        yaxis={"range": [0, 1.12], "dtick": 0.25, "tickformat": ".0%"},
    )


def positions_columns(found: Marked) -> Drawn:
    """With Wilson's intervals; settings stand a little beside each other."""
    curves, whiskers = (_empty(), _empty()), _empty()
    marks: dict[str, list[Any]] = {"x": [], "y": [], "text": [], "customdata": []}
    for place, (mark, one) in enumerate(found.items()):
        beside = 0.12 * (place - (len(found) - 1) / 2)
        _line(curves, [0.7, one.gamma + 0.3], [one.acceptance] * 2, mark)
        for position, (accepted, judged) in enumerate(zip(one.accepted, one.judged, strict=True), 1):
            if not judged:
                continue
            sure = share_interval(accepted, judged)
            x = position + beside
            _join(whiskers, [x, x], [sure.low, sure.high])
            marks["x"].append(x)
            marks["y"].append(accepted / judged)
            marks["text"].append(mark)
            marks["customdata"].append(f"{accepted} of {judged} accepted")
    widest = max((one.gamma for one in found.values()), default=4)
    return [*curves, whiskers, marks], {"xaxis.range": [0.5, widest + 0.7]}


def growth_figure(dark: bool = False) -> go.Figure:
    """Milliseconds a token against the text's length, and a curve through each."""
    colours = look(dark)
    dots = [
        go.Scatter(
            name=name,
            mode="markers",
            marker={"color": colour, "size": 5, "opacity": 0.55, "symbol": symbol},
            hovertemplate="%{x} tokens: %{y:.1f} ms<extra>%{fullData.name}</extra>",
        )
        for name, colour, symbol in ((CACHED, OWN, "circle"), (UNCACHED, colours.verify, "x-thin-open"))
    ]
    return blank(
        [*dots, _curves(dark, 2), _names(dark)],
        dark,
        margin={"l": 52, "r": 78, "t": 8, "b": 36},
        xaxis={"range": [0, 1], "nticks": 6, "title": axis_title("tokens so far", dark)},
        yaxis={"range": [0, 1], "nticks": 5, "ticksuffix": " ms"},
    )


def growth_columns(curves: Mapping[str, Curve]) -> Drawn:
    """A step that was held up stands far above all others, perhaps out of sight: the axis fits the medians."""
    lines, dots, top = (_empty(), _empty()), [], 0.0
    for name in (CACHED, UNCACHED):
        curve = curves[name]
        fit, begin, end = curve.fit, curve.lengths[0], curve.lengths[-1]
        xs = [begin + (end - begin) * i / POINTS for i in range(POINTS + 1)]
        ys = [fit(x) for x in xs]
        _line(lines, xs, ys, name)
        dots.append({"x": list(curve.lengths), "y": [round(ms, 3) for ms in curve.ms]})
        top = max(top, *ys, *curve.medians[1])
    first, last = curves[UNCACHED].lengths[0], curves[UNCACHED].lengths[-1]
    return [*dots, *lines], {"xaxis.range": [first - 2, last + 2], "yaxis.range": [0, nice_ceiling(1.15 * top)]}


def cache_figure(dark: bool = False) -> go.Figure:
    """Bytes of cache against the text's length, a line a format."""
    return blank(
        [_curves(dark), _names(dark), _marks(dark, "%{x:,} tokens: %{customdata}, measured")],
        dark,
        margin={"l": 52, "r": 46, "t": 8, "b": 36},
        xaxis={"range": [0, 1], "nticks": 5, "title": axis_title("tokens", dark)},
        yaxis={"range": [0, 1], "nticks": 5},
    )


def cache_columns(token_bytes: Mapping[str, int], used: Mapping[str, tuple[int, int]]) -> Drawn:
    """``token_bytes``: of the target alone, by format. ``used``: tokens and bytes that runs held, by mark."""
    longest = 1.15 * max((tokens for tokens, _ in used.values()), default=1000)  # names stand beyond the marks
    most = max([*(longest * each for each in token_bytes.values()), *(size for _, size in used.values())], default=1000)
    scale, unit = byte_unit(most)
    curves = _empty(), _empty()
    for name, each in token_bytes.items():
        _line(curves, [0, longest], [0, longest * each / scale], KV_FORMATS[name])
    marks = {
        "x": [tokens for tokens, _ in used.values()],
        "y": [size / scale for _, size in used.values()],
        "text": list(used),
        "customdata": [f"{digits(size / scale)} {unit}" for _, size in used.values()],
    }
    return [*curves, marks], {
        "xaxis.range": [0, longest],
        "yaxis.range": [0, nice_ceiling(most / scale)],
        "yaxis.ticksuffix": f" {unit}",
    }


CHARTS = {
    "bars": bars_figure,
    "round": round_figure,
    "tokens": tokens_figure,
    "speedup": speedup_figure,
    "gains": gains_figure,
    "positions": positions_figure,
    "growth": growth_figure,
    "cache": cache_figure,
}
"""Every chart of the Compare page."""


def shells() -> dict[str, dict[str, Any]]:
    """Every chart's empty figure in both looks, as JSON for the page."""
    return {name: looks(make) for name, make in CHARTS.items()}


def columns(found: Marked) -> dict[str, Drawn]:
    """The data and axes of what theory has a say in."""
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


def _curves(dark: bool, width: float = 1.5) -> go.Scatter:
    """Any number of curves in one trace, with gaps between."""
    line = {"color": look(dark).muted, "width": width}
    return go.Scatter(name="theory", mode="lines", line=line, connectgaps=False, hoverinfo="skip")


def _names(dark: bool, position: str = "middle right") -> go.Scatter:
    """The curves' names, at their ends."""
    return go.Scatter(
        name="names",
        mode="text",
        textposition=position,
        textfont={"color": look(dark).muted, "size": 11},
        cliponaxis=False,
        hoverinfo="skip",
    )


def _whiskers(dark: bool) -> go.Scatter:
    return go.Scatter(
        name="spread", mode="lines", line={"color": look(dark).ink, "width": 1.5}, connectgaps=False, hoverinfo="skip"
    )


def _marks(dark: bool, hover: str) -> go.Scatter:
    return go.Scatter(
        name="measured",
        mode="text",
        textfont={"color": look(dark).ink, "size": 17},
        cliponaxis=False,
        hovertemplate=f"%{{text}} {hover}<extra></extra>",
    )


def _empty() -> dict[str, list[Any]]:
    return {"x": [], "y": []}


def _join(trace: dict[str, list[Any]], x: list[float], y: list[float]) -> None:
    """Add a piece of line, and a gap after it."""
    trace["x"] += [*x, None]
    trace["y"] += [*y, None]


def _over_acceptance(curves: Curves, gamma: int, of: Callable[[float, int], float]) -> None:
    """Add the curve of a gamma: ``of`` acceptance and gamma."""
    xs = [i / POINTS for i in range(POINTS + 1)]
    _line(curves, xs, [of(x, gamma) for x in xs], f"γ {gamma}")


def _line(curves: Curves, x: list[float], y: list[float], name: str) -> None:
    """Add a curve to the first, and its name to the second."""
    line, names = curves
    _join(line, x, y)
    names["x"].append(x[-1])
    names["y"].append(y[-1])
    names.setdefault("text", []).append(name)
