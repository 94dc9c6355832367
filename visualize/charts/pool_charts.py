"""Many sequences over time: the pool's blocks by state, running and waiting sequences, and tokens per second.

Time is in seconds since the run began. A step's point is where the step ended; blocks and sequences are drawn from the
point before it on, as they were while the step was computed.
"""

from collections.abc import Sequence
from typing import Any, Literal

import plotly.graph_objects as go

from lab.kv_cache.block_pool import Occupancy
from visualize.charts.base import Drawn, Patch, blank, drawn, look, nice_ceiling
from visualize.states import DRAFT_TIME, OWN, STATES

STATES_OF_BLOCKS = ("live", "cached", "free")
"""From the bottom up; the names are the fields of ``Occupancy``."""
MARGIN = {"l": 44, "r": 18, "t": 6, "b": 24}


def occupancy_figure(dark: bool = False) -> go.Figure:
    """Blocks by state, stacked: together they are the pool."""
    colours = look(dark)
    fills: dict[str, dict[str, Any]] = {
        "live": {"fillcolor": OWN, "line": {"width": 0, "shape": "vh"}},
        "cached": {
            "fillcolor": "rgba(0,0,0,0)",
            "fillpattern": {"shape": "/", "fgcolor": colours.muted, "size": 5, "solidity": 0.35},
            "line": {"width": 1, "color": colours.muted, "shape": "vh"},
        },
        "free": {"fillcolor": "rgba(0,0,0,0)", "line": {"width": 1, "color": colours.faint, "shape": "vh"}},
    }
    return over_time(
        [
            go.Scatter(
                name=state,
                mode="lines",
                stackgroup="pool",
                hovertemplate=f"%{{x:.2f}} s: %{{y}} {state}<extra></extra>",
                **fills[state],
            )
            for state in STATES_OF_BLOCKS
        ],
        dark,
    )


def queue_figure(dark: bool = False, shape: Literal["hv", "vh"] = "hv") -> go.Figure:
    """Running and waiting sequences: a solid line and a dotted one. ``shape``: whether a point holds from then on, as
    where they are looked at from time to time, or up to then, as for steps."""
    state = STATES["accepted"]
    colours = {"running": state.dark if dark else state.light, "waiting": look(dark).muted}
    return over_time(
        [
            go.Scatter(
                name=name,
                mode="lines",
                line={"color": colour, "width": 2, "dash": "solid" if name == "running" else "dot", "shape": shape},
                hovertemplate=f"%{{x:.2f}} s: %{{y}} {name}<extra></extra>",
            )
            for name, colour in colours.items()
        ],
        dark,
    )


def speed_figure(dark: bool = False) -> go.Figure:
    """Tokens per second of all sequences together."""
    line = go.Scatter(
        name="tokens/s",
        mode="lines",
        line={"color": look(dark).ink, "width": 1.6},
        hovertemplate="%{x:.2f} s: %{y:,.4~r} tokens/s<extra></extra>",
    )
    return over_time([line], dark)


def load_figure(dark: bool = False) -> go.Figure:
    """Running and waiting sequences, and the most tokens that were drafted for one of them."""
    drafted = go.Scatter(
        name="draft tokens per round",
        mode="lines",
        line={"color": DRAFT_TIME, "width": 2, "dash": "dash", "shape": "vh"},
        hovertemplate="%{x:.2f} s: γ = %{y}<extra></extra>",
    )
    return queue_figure(dark, "vh").add_trace(drafted)


CHARTS = {"occupancy": occupancy_figure, "queue": load_figure, "speed": speed_figure}


def states(
    seconds: float, blocks: Occupancy, running: int, waiting: int, drafted: int | None
) -> dict[str, list[Patch]]:
    """The points of what there was up to this time. ``drafted``: the most tokens for a sequence; None: no drafter."""
    return occupancy(seconds, blocks) | _points(seconds, queue=[running, waiting, drafted])


def occupancy(seconds: float, blocks: Occupancy) -> dict[str, list[Patch]]:
    return _points(seconds, occupancy=[getattr(blocks, state) for state in STATES_OF_BLOCKS])


def pace(seconds: float, speed: float) -> dict[str, list[Patch]]:
    return _points(seconds, speed=[round(speed, 2)])


def _points(seconds: float, **values: list[int | None]) -> dict[str, list[Patch]]:
    """By chart: a point of each of its traces."""
    return {
        name: [[trace, None, {"x": round(seconds, 4), "y": y}] for trace, y in enumerate(row)]
        for name, row in values.items()
    }


def layout(seconds: float, num_blocks: int, most: int, top_speed: float) -> dict[str, dict[str, Any]]:
    """The axes; those that grow do so in jumps, and stay still in between. ``most``: requests, or draft tokens per
    round if these are more."""
    tops = {"occupancy": num_blocks, "queue": max(2, most) * 1.06, "speed": nice_ceiling(top_speed)}
    time = [0, nice_ceiling(seconds)]
    return {name: {"xaxis.range": time, "yaxis.range": [0, top]} for name, top in tops.items()}


def over_time(traces: list[Any], dark: bool) -> go.Figure:
    """A figure against seconds."""
    return blank(
        traces,
        dark,
        margin=MARGIN,
        xaxis={
            "range": [0, 1],
            "nticks": 6,
            "tickangle": 0,
            "ticksuffix": " s",
            "showticksuffix": "last",  # there is no room for all of them
            "showgrid": False,
            "fixedrange": True,
        },
        yaxis={"range": [0, 30], "nticks": 4, "fixedrange": True, "tickformat": "~s"},
    )


# -- a workshop's room -----------------------------------------------------------------------------

ROOM_SECONDS = 60
"""Seconds in view."""


def _until_now(figure: go.Figure) -> go.Figure:
    return figure.update_xaxes(range=[-ROOM_SECONDS, 0])


ROOM_CHARTS = {
    "queue": lambda dark=False: _until_now(queue_figure(dark)),
    "speed": lambda dark=False: _until_now(speed_figure(dark)),
}


def room(points: Sequence[tuple[int, int, int]]) -> dict[str, dict[str, Any]]:
    """A workshop's charts: columns and axes.

    Args:
        points: one per second, the latest last: running runs, waiting runs, and tokens.
    """
    seconds = list(range(1 - len(points), 1))
    running, waiting, speed = (list(row) for row in zip(*points, strict=True)) if points else ([], [], [])
    tops = {"queue": max([4, *running, *waiting]), "speed": max([10, *speed])}
    rows = {"queue": (running, waiting), "speed": (speed,)}
    charts: dict[str, Drawn] = {
        name: ([{"x": seconds, "y": row} for row in rows[name]], {"yaxis.range": [0, 1.06 * nice_ceiling(top)]})
        for name, top in tops.items()
    }
    return drawn(charts)
