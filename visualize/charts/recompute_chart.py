"""Chart of what the target computes without a KV cache: in every pass the whole text again, and a little more.

The x axis counts passes, with the whole run in view: without a cache the area is a triangle; with one, only its lower
edge would be left.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from lab.util.messages import counted
from visualize.charts.base import Patch, axis_title, blank, look, nice_ceiling
from visualize.states import OWN

TRACES = ("again", "new")


def figure(dark: bool = False) -> go.Figure:
    """Two areas, the second over the first: all tokens of a pass, and those that no earlier pass has computed."""
    colours = look(dark)
    again, new = ({"color": colour, "width": 1} for colour in (colours.verify, OWN))
    hatch = {"shape": "/", "fgcolor": colours.verify, "size": 5, "solidity": 0.3}
    said = "Pass %{x}: %{customdata}<extra></extra>"
    return blank(
        [
            go.Scatter(name="again", mode="lines", line=again, fill="tozeroy", fillpattern=hatch, hovertemplate=said),
            go.Scatter(name="new", mode="lines", line=new, fill="tozeroy", fillcolor=OWN, hoverinfo="skip"),
        ],
        dark,
        margin={"l": 48, "r": 10, "t": 4, "b": 36},
        xaxis={"range": [0, 5], "showgrid": False, "tickformat": "d", "nticks": 6, "title": axis_title("pass", dark)},
        yaxis={"range": [0, 10], "nticks": 5},
    )


def columns() -> list[dict[str, list[Any]]]:
    return [{"x": [], "y": []} for _ in TRACES]


def point(step: int, new: int, again: int) -> list[Patch]:
    said = f"{counted(new, 'new token')}, {again:,} computed before"
    return [[0, None, {"x": step, "y": new + again, "customdata": said}], [1, None, {"x": step, "y": new}]]


def layout(step: int, most: int) -> dict[str, Any]:
    """The axes, on which every label is a whole number. ``most``: the most tokens in a pass so far."""
    return {"xaxis.range": [0, max(5.0, nice_ceiling(step))], "yaxis.range": [0, nice_ceiling(1.05 * most)]}


def caption(new: int, again: int) -> str:
    """The totals of the run so far."""
    return f"{again:,} of {counted(new + again, 'token')}"
