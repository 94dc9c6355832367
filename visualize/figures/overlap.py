"""What a rule does with each word, as bars: what is proposed beside p, and what comes out of it beside p.

On the left q stands on what is accepted of it; what is rejected lies above, and so does the residual, p over q.
On the right the same accepted part, with what is drawn in place of the rejected on top. p is an outline on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from visualize.figures.base import Columns, axis_title, blank, look, nice_ceiling, short
from visualize.vocabulary import STATES

HATCHES = {"accepted": "", "rejected": "x", "recovered": "/"}
"""What tells the parts apart where colours do not."""


def proposed_figure(dark: bool = False) -> go.Figure:
    """q by word, accepted and rejected, the residual, and p."""
    return _figure({"accepted": "", "rejected": "", "recovered": "the residual"}, dark)


def written_figure(dark: bool = False) -> go.Figure:
    """What comes out by word, accepted or drawn in place of a rejected guess, and p."""
    return _figure({"accepted": "", "recovered": ""}, dark)


def columns(
    p: Sequence[float], q: Sequence[float], accepted: Sequence[float], replaced: Sequence[float], residual: bool
) -> dict[str, Columns]:
    """The data of both charts.

    Args:
        p, q: [words] probabilities, as are
        accepted: of each word, proposed and kept.
        replaced: of each word, drawn in place of a rejected one.
        residual: whether what p has over q is what is drawn from.
    """
    rejected = [a - b for a, b in zip(q, accepted, strict=True)]
    left = [max(a - b, 0.0) if residual else 0.0 for a, b in zip(p, q, strict=True)]
    proposed = [_bars(accepted), _bars(rejected, accepted), _bars(left, q) | {"showlegend": residual}]
    written = [_bars(accepted), _bars(replaced, accepted)]
    outline = _bars(p)
    return {"proposed": [*proposed, outline], "written": [*written, outline]}


def layout(words: int, top: float) -> dict[str, Any]:
    """The axes of either chart. ``top``: the highest bar that there may be."""
    return {
        "xaxis.range": [0.4, words + 0.6],
        "xaxis.tickvals": list(range(1, words + 1)),
        "yaxis.range": [0, nice_ceiling(1.02 * top)],
    }


def _figure(parts: dict[str, str], dark: bool) -> go.Figure:
    """Parts by their state, with a name of their own where the state's does not say it."""
    colours = look(dark)
    hover = "word %{x}, %{fullData.name}: %{customdata:.1%}<extra></extra>"
    bars = []
    for key, name in parts.items():
        state = STATES[key]
        hatch = {"shape": HATCHES[key], "fillmode": "overlay", "fgcolor": colours.paper, "size": 6, "solidity": 0.25}
        marker = {"color": state.dark if dark else state.light, "line": {"width": 0}, "pattern": hatch}
        bars.append(go.Bar(name=f"{state.glyph} {name or state.label}", width=0.62, marker=marker, hovertemplate=hover))
    line = {"width": 2, "color": colours.ink}
    outline = go.Bar(name="p", width=0.8, marker={"color": "rgba(0,0,0,0)", "line": line}, hovertemplate=hover)
    return blank(
        [*bars, outline],
        dark,
        barmode="overlay",
        margin={"l": 44, "r": 10, "t": 44, "b": 36},
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "itemclick": False, "traceorder": "normal"},
        xaxis={
            "range": [0.4, 8.6],
            "showgrid": False,
            "fixedrange": True,
            "title": axis_title("word", dark),
        },
        yaxis={"range": [0, 0.5], "fixedrange": True, "nticks": 6, "tickformat": ".0%"},
    )


def _bars(heights: Sequence[float], on: Sequence[float] | None = None) -> dict[str, list[Any]]:
    """A bar a word, standing ``on`` others."""
    bars: dict[str, list[Any]] = {
        "x": list(range(1, len(heights) + 1)),
        "y": [short(height) for height in heights],
    }
    bars["customdata"] = bars["y"]  # where a bar stands on another, Plotly's own y is its upper end
    return bars | ({"base": [short(base) for base in on]} if on else {})
