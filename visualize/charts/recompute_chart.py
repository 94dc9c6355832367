"""Chart of what the target computes without a KV cache: in every pass the whole text again, and a little more.

The x axis counts passes, with the whole run in view: without a cache the area is a triangle; with one, only its lower
edge would be left.
"""

import plotly.graph_objects as go

from visualize.charts.base import axis_title, blank, look
from visualize.states import OWN


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
