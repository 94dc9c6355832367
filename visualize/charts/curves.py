"""Labelled curves, whiskers and settings' marks: what the charts of theory and measurement share."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from visualize.charts.base import Columns, look

Drawn = tuple[Columns, dict[str, Any]]
"""A chart's columns, per trace, and its layout changes."""
Curves = tuple[dict[str, list[Any]], dict[str, list[Any]]]
"""Lines, and their names."""


def curve_trace(dark: bool, width: float = 1.5) -> go.Scatter:
    """Any number of curves in one trace, with gaps between."""
    line = {"color": look(dark).muted, "width": width}
    return go.Scatter(name="theory", mode="lines", line=line, hoverinfo="skip")


def name_trace(dark: bool) -> go.Scatter:
    """The curves' names, at their ends."""
    return go.Scatter(
        name="names",
        mode="text",
        textposition="middle right",
        textfont={"color": look(dark).muted, "size": 11},
        cliponaxis=False,
        hoverinfo="skip",
    )


def whisker_trace(dark: bool) -> go.Scatter:
    """Quartiles, or an interval, through a mark."""
    return go.Scatter(name="spread", mode="lines", line={"color": look(dark).ink, "width": 1.5}, hoverinfo="skip")


def mark_trace(dark: bool, hover: str) -> go.Scatter:
    """The settings' marks; ``hover``: the text after a mark in its hover label."""
    return go.Scatter(
        name="measured",
        mode="text",
        textfont={"color": look(dark).ink, "size": 17},
        cliponaxis=False,
        hovertemplate=f"%{{text}} {hover}<extra></extra>",
    )


def no_points() -> dict[str, list[Any]]:
    return {"x": [], "y": []}


def join_points(trace: dict[str, list[Any]], x: list[float], y: list[float]) -> None:
    """Add a line segment, and a gap after it."""
    trace["x"] += [*x, None]
    trace["y"] += [*y, None]


def add_curve(curves: Curves, x: list[float], y: list[float], name: str) -> None:
    """Add a line and its name to ``curves``."""
    line, names = curves
    join_points(line, x, y)
    names["x"].append(x[-1])
    names["y"].append(y[-1])
    names.setdefault("text", []).append(name)
