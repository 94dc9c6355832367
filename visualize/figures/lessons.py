"""A lesson's own chart: any few figures as bars, each with its number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from lessons.units import WRITE, Unit
from visualize.figures.base import Columns, blank, look
from visualize.text import label
from visualize.vocabulary import OWN

ROOM = 1.28
"""Of the longest bar: its number stands beside it."""


def bars_figure(dark: bool = False) -> go.Figure:
    """Horizontal bars, the first on top, names above them: they may be long."""
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
    names = go.Scatter(
        name="names",
        mode="text",
        textposition="middle right",
        textfont={"color": colours.ink, "size": 12},
        cliponaxis=False,
        hoverinfo="skip",
    )
    return blank(
        [bar, names],
        dark,
        margin={"l": 12, "r": 12, "t": 4, "b": 8},
        xaxis={"range": [0, 1], "fixedrange": True, "showticklabels": False, "showgrid": False},
        yaxis={"range": [1.5, -0.5], "fixedrange": True, "showticklabels": False, "showgrid": False},
    )


def bars_columns(values: Mapping[str, float], unit: Unit) -> tuple[Columns, dict[str, Any]]:
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
