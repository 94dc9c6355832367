"""Charts of what grows with a text's length: milliseconds a token, and bytes of cache."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from lab.measure.scaling_fit import CACHED, UNCACHED, StepTimes
from lab.settings import KV_DTYPES
from visualize.charts.base import axis_title, blank, look, nice_ceiling
from visualize.charts.curves import Drawn, add_curve, curve_trace, mark_trace, name_trace, no_points
from visualize.format_numbers import byte_unit, digits
from visualize.states import OWN

POINTS = 50
"""Points per curve, less one."""


def growth_figure(dark: bool = False) -> go.Figure:
    """Milliseconds a token against the text's length, and a curve through each."""
    colours = look(dark)
    dots = [
        go.Scatter(
            name=name,
            mode="markers",
            marker={"color": colour, "size": 5, "opacity": 0.55, "symbol": symbol},
            hovertemplate="length %{x:,}: %{y:.1f} ms<extra>%{fullData.name}</extra>",
        )
        for name, colour, symbol in ((CACHED, OWN, "circle"), (UNCACHED, colours.verify, "x-thin-open"))
    ]
    return blank(
        [*dots, curve_trace(dark, 2), name_trace(dark)],
        dark,
        margin={"l": 52, "r": 78, "t": 8, "b": 36},
        xaxis={"range": [0, 1], "nticks": 6, "title": axis_title("tokens so far", dark)},
        yaxis={"range": [0, 1], "nticks": 5, "ticksuffix": " ms"},
    )


def growth_columns(curves: Mapping[str, StepTimes]) -> Drawn:
    """The axis fits the medians: a step that was held up is far above all others, perhaps out of view."""
    lines, dots, top = (no_points(), no_points()), [], 0.0
    for name in (CACHED, UNCACHED):
        curve = curves[name]
        fit, begin, end = curve.shown, curve.lengths[0], curve.lengths[-1]
        xs = [begin + (end - begin) * i / POINTS for i in range(POINTS + 1)]
        ys = [fit(x) for x in xs]
        add_curve(lines, xs, ys, name)
        dots.append({"x": list(curve.lengths), "y": [round(ms, 3) for ms in curve.ms]})
        top = max(top, *ys, *curve.medians[1])
    first, last = curves[UNCACHED].lengths[0], curves[UNCACHED].lengths[-1]
    return [*dots, *lines], {"xaxis.range": [first - 2, last + 2], "yaxis.range": [0, nice_ceiling(1.15 * top)]}


def cache_figure(dark: bool = False) -> go.Figure:
    """Bytes of cache against the text's length, one line per format."""
    return blank(
        [curve_trace(dark), name_trace(dark), mark_trace(dark, "length %{x:,}: %{customdata}, measured")],
        dark,
        margin={"l": 52, "r": 46, "t": 8, "b": 36},
        xaxis={"range": [0, 1], "nticks": 5, "title": axis_title("tokens", dark)},
        yaxis={"range": [0, 1], "nticks": 5},
    )


def cache_columns(token_bytes: Mapping[str, int], used: Mapping[str, tuple[int, int]]) -> Drawn:
    """``token_bytes``: the target's bytes per token, by format. ``used``: tokens and bytes that runs held, by mark."""
    longest = 1.15 * max((tokens for tokens, _ in used.values()), default=1000)  # names are to the right of the marks
    most = max([*(longest * each for each in token_bytes.values()), *(size for _, size in used.values())], default=1000)
    scale, unit = byte_unit(most)
    curves = no_points(), no_points()
    for name, each in token_bytes.items():
        add_curve(curves, [0, longest], [0, longest * each / scale], KV_DTYPES[name])
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
