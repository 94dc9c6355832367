"""Where each pass spent its time, and the speed that came of it."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from lab.trace.events import StepTimed
from visualize.figures.base import WINDOW, Patch, blank, look, nice_ceiling, window
from visualize.vocabulary import DRAFT_TIME

MODELS = ("draft", "verify")
"""The parts that are passes of a model: a device's limit is theirs."""
PARTS = (*MODELS, "other")
SMOOTH = 8
"""Passes over which the speed line is averaged; one pass alone jumps too much to read."""


def part_colours(dark: bool) -> dict[str, str]:
    colours = look(dark)
    return {"draft": DRAFT_TIME, "verify": colours.verify, "other": colours.other, "speed": colours.ink}


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
        hovertemplate=f"Pass %{{x}}: %{{y:.0f}} tokens/s, mean of {SMOOTH} passes<extra></extra>",
    )
    return blank(
        [*bars, line],
        dark,
        barmode="stack",
        margin={"l": 48, "r": 40, "t": 4, "b": 24},
        xaxis={"range": [0.5, WINDOW + 0.5], "showgrid": False, "tickformat": "d", "nticks": 8, "tickangle": 0},
        yaxis={"range": [0, 10], "nticks": 5, "ticksuffix": " ms"},
        yaxis2={
            "range": [0, 500],
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "zeroline": False,
            "nticks": 5,
            "tickmode": "auto",
            "tickfont": {"color": look(dark).muted, "size": 11},
        },
    )


def columns() -> list[dict[str, list[Any]]]:
    return [{"x": [], "y": []} for _ in (*PARTS, "speed")]


def points(step: int, draft: float, verify: float, other: float, speed: float, limit: str) -> list[Patch]:
    """One pass's bars, those of the models with what is said of the device's ``limit``, and the speed of late."""
    values = (round(draft, 3), round(verify, 3), round(other, 3), round(speed, 1))
    patches = [[trace, None, {"x": step, "y": value}] for trace, value in enumerate(values)]
    for _, _, row in patches[: len(MODELS)]:
        row["customdata"] = limit
    return patches


def caption(timed: StepTimed, limit: str) -> str:
    """How near its ``limit`` the newest step came."""
    step = "Prefill" if timed.step_kind == "prefill" else f"Pass {timed.step}"
    return f"{step}: {limit}" if limit else ""


def layout(step: int, ms_top: float, speed_top: float) -> dict[str, Any]:
    return {"xaxis.range": window(step), "yaxis.range": [0, ms_top], "yaxis2.range": [0, speed_top]}


def axis_top(current: float, highest: float) -> float:
    """The top of an axis that keeps still: it follows the ``highest`` value in view only when that no longer fits or
    is dwarfed."""
    wanted = nice_ceiling(1.15 * highest)
    return wanted if highest > current or wanted < current / 2.5 else current
