"""Two bar charts of a rule's effect on each word: what is proposed, and what is written.

On the left, q is divided into its accepted part and, above that, its rejected part; on top is the residual, where p
exceeds q. On the right is the same accepted part, topped by what is drawn in place of rejected words. p is an outline
on both.
"""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from visualize.charts.base import Columns, axis_title, blank, legend, look, nice_ceiling, short
from visualize.states import STATES

HATCHES = {"accepted": "", "rejected": "x", "recovered": "/"}
"""What tells the parts apart without colours."""


def proposed_figure(dark: bool = False) -> go.Figure:
    """q by word, accepted and rejected, the residual, and p."""
    return _figure({"accepted": "", "rejected": "", "recovered": "the residual"}, dark)


def written_figure(dark: bool = False) -> go.Figure:
    """The tokens written, by word, accepted or drawn in place of a rejected draft token, and p."""
    return _figure({"accepted": "", "recovered": ""}, dark)


def columns(
    p: Sequence[float], q: Sequence[float], accepted: Sequence[float], replaced: Sequence[float], residual: bool
) -> dict[str, Columns]:
    """The data of both charts.

    Args:
        p, q: [words] probabilities of the target and the draft.
        accepted: [words] probability that the word is proposed and kept.
        replaced: [words] probability that the word is drawn in place of a rejected one.
        residual: whether replacements are drawn from the residual, and it is shown.
    """
    rejected = [a - b for a, b in zip(q, accepted, strict=True)]
    left = [max(a - b, 0.0) if residual else 0.0 for a, b in zip(p, q, strict=True)]
    proposed = [_bars(accepted), _bars(rejected, accepted), _bars(left, q) | {"showlegend": residual}]
    written = [_bars(accepted), _bars(replaced, accepted)]
    outline = _bars(p)
    return {"proposed": [*proposed, outline], "written": [*written, outline]}


def layout(words: int, top: float) -> dict[str, Any]:
    """The axes of either chart. ``top``: the height of the highest possible bar."""
    return {
        "xaxis.range": [0.4, words + 0.6],
        "xaxis.tickvals": list(range(1, words + 1)),
        "yaxis.range": [0, nice_ceiling(1.02 * top)],
    }


def _figure(parts: dict[str, str], dark: bool) -> go.Figure:
    """A chart of ``parts``: names by state; an empty one is the state's own label."""
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
        legend=legend(dark, traceorder="normal"),
        xaxis={"range": [0.4, 8.6], "showgrid": False, "fixedrange": True, "title": axis_title("word", dark)},
        yaxis={"range": [0, 0.5], "fixedrange": True, "nticks": 6, "tickformat": ".0%"},
    )


def _bars(heights: Sequence[float], on: Sequence[float] | None = None) -> dict[str, list[Any]]:
    """One bar per word, stacked ``on`` others."""
    bars: dict[str, list[Any]] = {"x": list(range(1, len(heights) + 1)), "y": [short(height) for height in heights]}
    bars["customdata"] = bars["y"]  # for a bar on top of another, Plotly's own y is its upper end
    return bars | ({"base": [short(base) for base in on]} if on else {})
