"""Many sequences over time: the pool's blocks by state, running and waiting sequences, and tokens per second.

Time is in seconds since the run began. A step's point is where the step ended; blocks and sequences are drawn from the
point before it on, as they were while the step was computed.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import plotly.graph_objects as go

from lab.kv_cache.block_pool import Occupancy
from visualize.charts.base import Drawn, Patch, drawn, figure_of, nice_ceiling

STATES_OF_BLOCKS = ("live", "cached", "free")
"""From the bottom up; the names are the fields of ``Occupancy``."""

occupancy_figure = partial(figure_of, "occupancy")
queue_figure = partial(figure_of, "queue")
speed_figure = partial(figure_of, "speed")

CHARTS = {"occupancy": occupancy_figure, "queue": partial(figure_of, "load"), "speed": speed_figure}


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
