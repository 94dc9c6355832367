"""A verdict, opened: the two distributions behind a draft token, the residual, and what p is compared with.

The draft token comes first. It was accepted if the target's bar rises above the line: u q, or
typical acceptance's threshold.
Block verification compares no single p: it has no line.
"""

import plotly.graph_objects as go

from visualize.charts.base import blank, look
from visualize.states import DRAFT_TIME, STATES

BARS = ("target p", "draft q", "residual")
LINES = ("u q", "threshold")
MOST = 10
"""Most tokens shown."""
WIDE = 0.46
"""Half the width of the line over the draft token, a little wider than its bars."""


def figure(dark: bool = False) -> go.Figure:
    """Bars side by side for each token, and the lines over the draft token, of which one is drawn at most."""
    colours, recovered = look(dark), STATES["recovered"]
    residual = recovered.dark if dark else recovered.light
    hatch = {"shape": "/", "fillmode": "overlay", "fgcolor": colours.paper, "size": 5, "solidity": 0.3}
    markers = [{"color": colours.verify}, {"color": DRAFT_TIME}, {"color": residual, "pattern": hatch}]
    traces = [
        go.Bar(
            name=name,
            marker=marker | {"line": {"width": 0}},
            hovertemplate=f"%{{customdata}}: {name} %{{y:.3~g}}<extra></extra>",
        )
        for name, marker in zip(BARS, markers, strict=True)
    ]
    lines = [
        go.Scatter(
            name=name,
            mode="lines",
            line={"color": colours.ink, "width": 2.5},
            hovertemplate=f"{name} = %{{y:.3~g}}<extra></extra>",
        )
        for name in LINES
    ]
    return blank(
        [*traces, *lines],
        dark,
        barmode="group",
        bargap=0.22,
        margin={"l": 44, "r": 10, "t": 6, "b": 24},
        xaxis={"showgrid": False, "range": [-0.6, MOST - 0.4], "tickvals": [], "ticktext": [], "automargin": True},
        yaxis={"range": [0, 1], "nticks": 5},
    )
