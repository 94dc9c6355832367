"""A lesson's own charts: a few figures as bars, and distances that fall, or do not, as draws add up."""

import math
import statistics
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from lab.measure.comparison import Summary
from lab.measure.interval import factor_interval, ratios
from lessons.template import WRITE, Unit
from visualize.charts import compare_charts
from visualize.charts.base import Columns, Drawn, add, axis_title, blank, legend, look, words
from visualize.states import OWN
from visualize.text import label

times = WRITE["times"]
ROOM = 1.28
"""Length of the axis in longest bars: there has to be room for the number beside it."""


def bars_figure(dark: bool = False) -> go.Figure:
    """Horizontal bars, the first on top, with their names above them because they may be long."""
    colours = look(dark)
    bar = go.Bar(
        name="figures",
        orientation="h",
        width=0.44,
        marker={"color": OWN, "line": {"width": 0}},
        textposition="outside",
        textfont={"color": colours.ink, "size": 13},
        cliponaxis=False,
        hovertemplate="%{customdata}<extra></extra>",
    )
    return blank(
        [bar, words(dark, 12, name="names")],
        dark,
        margin={"l": 12, "r": 12, "t": 4, "b": 8},
        xaxis={"range": [0, 1], "fixedrange": True, "showticklabels": False, "showgrid": False},
        yaxis={"range": [1.5, -0.5], "fixedrange": True, "showticklabels": False, "showgrid": False},
    )


def bars_columns(values: Mapping[str, float], unit: Unit) -> Drawn:
    """Bars of ``values`` by name, and the axes."""
    write = WRITE[unit]
    places, lengths = list(range(len(values))), list(values.values())
    bar = {
        "x": lengths,
        "y": places,
        "text": [f"<b>{write(value)}</b>" for value in lengths],
        "customdata": [f"{label(name)}: {write(value)}" for name, value in values.items()],
    }
    names = {
        "x": [0] * len(values),
        "y": [place - 0.38 for place in places],
        "text": [label(name, 60) for name in values],
    }
    edge = ROOM * max(*lengths, 0) or 1
    return [bar, names], {"xaxis.range": [min(0, *lengths), edge], "yaxis.range": [len(values) - 0.6, -0.7]}


def ratios_figure(dark: bool = False) -> go.Figure:
    """Horizontal bars of ratios, a circle for each repeat, and a line at 1, where nothing is gained."""
    figure = compare_charts.bars_figure(dark)
    figure.data[2].hovertemplate = "%{customdata}, one repeat<extra></extra>"
    line = {"color": look(dark).muted, "width": 1, "dash": "dot"}
    return figure.add_shape(type="line", x0=1, x1=1, y0=0, y1=1, yref="paper", layer="below", line=line)


def ratios_columns(settings: Mapping[str, Summary]) -> Drawn:
    """Each setting's speed-up, the median of its repeats, and all of them."""
    bar, repeats, said = ({"x": [], "y": [], key: []} for key in ("customdata", "customdata", "text"))
    edge = 2.4 * max(max(one.factors) for one in settings.values())  # the text needs the rest
    for place, (name, one) in enumerate(settings.items()):
        found = speedup_words(one)
        add(bar, statistics.median(one.factors), place, f"{label(name)}: {found}")
        add(said, edge, place, found.replace(" (", "<br>("))
        for factor in one.factors:
            add(repeats, factor, place, times(factor))
    return [bar, {"x": [], "y": []}, repeats, said], {
        "xaxis.range": [0, edge],
        "yaxis.range": [len(settings) - 0.5, -0.5],
        "yaxis.tickvals": list(range(len(settings))),
        "yaxis.ticktext": [f"{label(name, 13)} " for name in settings],
    }


def speedup_words(one: Summary) -> str:
    """The median ratio, and how certain it is."""
    factor, low, high = (times(of(one.factors)) for of in (statistics.median, min, max))
    if len(one.factors) == 1:
        return f"{factor} (one run)"
    sure = "" if one.clear or low == high else "unclear: "
    return factor if low == high else f"{factor} ({sure}{low} to {high})"


LINES = {
    "target_alone": ("the target alone", "dot"),
    "residual": ("A, the residual", "solid"),
    "redrawn_from_p": ("B, redrawn from p", "dash"),
    "without_q": ("C, without q", "dashdot"),
}
"""The rules' names in the lesson, and the dashes of their lines."""
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def distances_figure(dark: bool = False) -> go.Figure:
    """Total variation distance against draws, one line per rule, both axes logarithmic: chance alone gives a straight
    line down."""
    colours = look(dark)
    lines = [
        go.Scatter(
            mode="lines",
            name=name,
            line={"color": OWN if rule == "residual" else colours.muted, "width": 2, "dash": dash},
            hovertemplate="%{x:,} draws: %{y:.1%}<extra>%{fullData.name}</extra>",
        )
        for rule, (name, dash) in LINES.items()
    ]
    axis = {"type": "log", "fixedrange": True}
    return blank(
        lines,
        dark,
        margin={"l": 52, "r": 14, "t": 44, "b": 36},
        showlegend=True,
        legend=legend(dark),
        xaxis=axis
        | {"tickmode": "linear", "tick0": math.log10(250), "dtick": math.log10(2), "tickformat": ",d"}
        | {"title": axis_title("draws", dark)},
        yaxis=axis
        | {"tickvals": TICKS, "ticktext": [f"{tick:.0%}" for tick in TICKS]}
        | {"title": axis_title("away from p", dark)},
    )


def distances_columns(rules: Mapping[str, Mapping[str, Any]]) -> Drawn:
    """Each rule's distances after every batch of draws."""
    columns: Columns = [{"x": list(rules[rule]["draws"]), "y": list(rules[rule]["distances"])} for rule in LINES]
    xs = [x for column in columns for x in column["x"]]
    ys = [y for column in columns for y in column["y"] if y > 0]  # 0 has no logarithm
    return columns, {
        "xaxis.range": [math.log10(min(xs)) - 0.05, math.log10(max(xs)) + 0.05],
        "yaxis.range": [math.log10(min(ys)) - 0.1, math.log10(max(ys)) + 0.15],
    }


KEPT = {"full": "solid", "window": "dash", "latent": "dot", "hybrid": "dashdot"}
KINDS = {
    "full": "full attention",
    "window": "sliding window",
    "latent": "latent attention (MLA)",
    "hybrid": "recurrent state",
}
"""What kinds of layers are called, and above the dashes of their lines."""


def kept_figure(dark: bool = False) -> go.Figure:
    """KiB of a growing text, one line per kind of layers."""
    lines = [
        go.Scatter(
            mode="lines",
            name=KINDS[kind],
            line={"color": look(dark).muted if kind == "full" else OWN, "width": 2, "dash": dash},
            hovertemplate="%{x} tokens: %{y:.0f} KiB, %{customdata} blocks<extra>%{fullData.name}</extra>",
        )
        for kind, dash in KEPT.items()
    ]
    return _over(lines, dark, "tokens of the text", "KiB kept", rangemode="tozero")


def _over(traces: list[go.Scatter], dark: bool, x: str, y: str, **how: object) -> go.Figure:
    """A figure of ``y`` over ``x``, its axis as ``how`` says."""
    return blank(
        traces,
        dark,
        margin={"l": 52, "r": 14, "t": 44, "b": 36},
        showlegend=True,
        legend=legend(dark),
        xaxis={"fixedrange": True, "title": axis_title(x, dark)},
        yaxis={"fixedrange": True, "title": axis_title(y, dark), **how},
    )


def kept_columns(kinds: Mapping[str, Mapping[str, Any]]) -> Drawn:
    """Each kind's bytes and blocks by the length of the text."""
    found = [kinds[kind] for kind in KEPT]
    columns: Columns = [
        {"x": one["lengths"], "y": [size / 1024 for size in one["bytes_at"]], "customdata": one["blocks_at"]}
        for one in found
    ]
    most = max(max(column["y"]) for column in columns)
    return columns, {"xaxis.range": [0, found[0]["tokens"]], "yaxis.range": [0, 1.05 * most]}


NARROWING = {"same": "same setting", "longer": "more tokens"}


def narrowing_figure(dark: bool = False) -> go.Figure:
    """Ratios of pairs of runs, and the interval of their mean as pairs add up. A dotted line: nothing differs."""
    colours = {"same": look(dark).muted, "longer": OWN}
    bands = [
        go.Scatter(
            mode="lines",
            fill="toself",
            line={"width": 0},
            fillcolor=_faint(colours[row]),
            hoverinfo="skip",
            showlegend=False,
        )
        for row in NARROWING
    ]
    pairs = [
        go.Scatter(
            mode="markers",
            name=f"{name} / first setting",
            marker={"color": colours[row], "size": 8, "symbol": "circle" if row == "same" else "diamond"},
            hovertemplate="pair %{x}: %{y:.3f}×<extra>%{fullData.name}</extra>",
        )
        for row, name in NARROWING.items()
    ]
    figure = _over([*bands, *pairs], dark, "pairs of runs", "time / time", ticksuffix="×")
    line = {"color": look(dark).muted, "width": 1, "dash": "dot"}
    return figure.add_shape(type="line", x0=0, x1=1, y0=1, y1=1, xref="paper", layer="below", line=line)


def _faint(colour: str) -> str:
    return f"rgba({', '.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))}, 0.2)"


def narrowing_columns(rows: Mapping[str, Mapping[str, Any]]) -> Drawn:
    """The ratio of every pair, and from the third on the interval of all up to it."""
    bands, pairs, seen = [], [], []
    for row in NARROWING:
        each = ratios(rows[row]["ms"], rows["one"]["ms"])
        places = range(3, len(each) + 1)
        ends = [factor_interval(each[:count]) for count in places]
        edge = [*[one.high for one in ends], *[one.low for one in reversed(ends)]]
        bands.append({"x": [*places, *reversed(places)], "y": edge})
        pairs.append({"x": list(range(1, len(each) + 1)), "y": each})
        seen += each
    return [*bands, *pairs], {
        "xaxis.range": [0.4, len(pairs[0]["x"]) + 0.6],
        "yaxis.range": [0.97 * min(seen), 1.03 * max(seen)],
    }
