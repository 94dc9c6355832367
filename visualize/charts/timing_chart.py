"""The time of each pass by part, the prefill first, and the resulting speed."""

import plotly.graph_objects as go

from lab.trace.events import StepTimed
from visualize.charts.base import blank, look, window, words
from visualize.states import DRAFT_TIME

MODELS = ("draft", "target")
"""The parts that are passes of a model: the device's limit applies to them."""
PARTS = (*MODELS, "other")
SMOOTH = 8
"""Passes over which the speed line is averaged; one pass alone jumps too much to read."""
DWARFS = 3
"""A prefill that takes more than this many times as long as the longest pass in view is cut off."""


def part_colours(dark: bool) -> dict[str, str]:
    colours = look(dark)
    return {"draft": DRAFT_TIME, "target": colours.verify, "other": colours.other, "speed": colours.ink}


def figure(dark: bool = False) -> go.Figure:
    """Stacked bars in milliseconds, and tokens/s as a line on the right-hand axis."""
    colours = part_colours(dark)
    bars = [
        go.Bar(
            name=part,
            marker={"color": colours[part], "line": {"width": 0}},
            hovertemplate=f"Pass %{{x}}: {part} %{{y:.2f}} ms{'<br>%{customdata}' * (part in MODELS)}<extra></extra>",
            width=0.8,
        )
        for part in PARTS
    ]
    line = go.Scatter(
        name="tokens/s",
        yaxis="y2",
        mode="lines",
        line={"color": colours["speed"], "width": 1.6},
        hovertemplate=f"Pass %{{x}}: %{{y:,.4~r}} tokens/s, mean of up to {SMOOTH} passes<extra></extra>",
    )
    prefill = words(dark, 11, muted=True, name="prefill", yaxis="y3", texttemplate="\u2002%{text}", cliponaxis=True)
    return blank(
        [*bars, line, prefill],
        dark,
        barmode="stack",
        margin={"l": 48, "r": 40, "t": 4, "b": 24},
        xaxis={"range": window(0), "showgrid": False, "tickformat": "d", "nticks": 8, "tickangle": 0},
        yaxis={"range": [0, 10], "nticks": 5, "ticksuffix": " ms"},
        yaxis2={
            "range": [0, 500],
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "zeroline": False,
            "tickvals": [],
            "tickfont": {"color": look(dark).muted, "size": 11},
        },
        yaxis3={"range": [0, 1], "overlaying": "y", "visible": False, "fixedrange": True},
    )


def caption(timed: StepTimed, limit: str) -> str:
    """The latest step's share of its ``limit``; why it may be above, only the bar's hover text says."""
    step = "Prefill" if timed.step_kind == "prefill" else f"Step {timed.step}"
    return f"{step}: {limit.partition(' (')[0]}" if limit else ""
