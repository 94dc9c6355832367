"""Rounds by draft position: what was proposed, accepted and corrected.

A column is one pass of the target, the prefill first. The bottom row is the token that the target
itself chose in that pass; the round's draft tokens are above it, first to last.
"""

import math
from typing import Any

import plotly.graph_objects as go

from lab.trace.verdict_rounding import written
from visualize.charts.base import Patch, blank, look, window
from visualize.states import STATES
from visualize.text import escaped

TRACES = ("plain", "accepted", "rejected", "unjudged", "recovered", "bonus")
HOLLOW = ("unjudged",)
SHAPES = {"unjudged": "square-open", "rejected": "x", "recovered": "circle", "bonus": "cross"}
"""What distinguishes states where columns go by too fast for glyphs (charts.js); the others stay squares."""
LABELS = 8
"""How many draft tokens there is room to label."""
_DRAFT_TOKEN = "Round %{x}, draft token %{customdata[2]}"  # not y, whose label on the axis may have words
_PLACE = dict.fromkeys(("plain", "recovered", "bonus"), "Pass %{x}, the target's own")


def figure(dark: bool = False) -> go.Figure:
    """One trace per state: squares with the state's glyph in them."""
    colours = look(dark)
    traces = []
    for key in TRACES:
        state = STATES[key]
        colour = state.dark if dark else state.light
        hollow = key in HOLLOW
        traces.append(
            go.Scatter(
                name=state.label,
                meta=SHAPES.get(key, "square"),
                mode="markers+text",
                text=state.glyph,
                textposition="middle center",
                textfont={"color": colour if hollow else _glyph_ink(key, colours.dark), "size": 11, "weight": 700},
                marker={
                    "symbol": "square-open" if hollow else "square",
                    "size": 14,
                    "color": colour,
                    "line": {"width": 1 if hollow else 0, "color": colour},
                    "opacity": 0.7 if hollow else 1,
                },
                hovertemplate=f"{_PLACE.get(key, _DRAFT_TOKEN)}: <b>%{{customdata[0]}}</b><br>"
                f"{state.label} {state.glyph} %{{customdata[1]}}<extra></extra>",
                cliponaxis=True,
            )
        )
    return blank(
        traces,
        dark,
        xaxis={"range": window(0), "showgrid": False, "tickformat": "d", "nticks": 8, "tickangle": 0},
        yaxis=_axis(4),
    )


def point(step: int, row: int, state: str, text: str, numbers: dict[str, float]) -> Patch:
    """One square; ``row`` 0 is the target's own token, 1 the round's first draft token. ``numbers`` are rounded."""
    detail = " · ".join(f"{name} {written(value)}" for name, value in numbers.items())
    return [TRACES.index(state), None, {"x": step, "y": row, "customdata": [escaped(text), detail, row]}]


def layout(step: int) -> dict[str, Any]:
    return {"xaxis.range": window(step)}


def caption(sequences: int) -> str:
    """The number of requests that share the latest column's forward pass, if several."""
    return "" if sequences == 1 else f"passes shared by {sequences} requests"


def rows(gamma: int) -> dict[str, Any]:
    """The y axis for rounds of at most ``gamma`` draft tokens."""
    return {f"yaxis.{key}": value for key, value in _axis(gamma).items()}


def _axis(gamma: int) -> dict[str, Any]:
    """A row for the target and one for each draft token; of many every second is labelled, every third, and so on."""
    every = max(1, math.ceil(gamma / LABELS))
    labelled = range(every, gamma + 1, every)
    words = [f"draft {row}" if row == every else f"{row}" for row in labelled]
    return {"range": [-0.6, gamma + 0.6], "tickvals": [0, *labelled], "ticktext": ["target", *words]}


def _glyph_ink(key: str, dark: bool) -> str:
    return "#10151d" if dark or key == "recovered" else "#ffffff"
