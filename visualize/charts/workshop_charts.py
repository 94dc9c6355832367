"""A workshop's room over time: running and waiting runs, and tokens a second of all together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from visualize.charts.base import nice_ceiling
from visualize.charts.pool_charts import queue_figure, speed_figure

SECONDS = 60
"""Seconds in view."""


def _until_now(figure: go.Figure) -> go.Figure:
    return figure.update_xaxes(range=[-SECONDS, 0])


CHARTS = {
    "queue": lambda dark=False: _until_now(queue_figure(dark)),
    "speed": lambda dark=False: _until_now(speed_figure(dark)),
}


def drawn(points: Sequence[tuple[int, int, int]]) -> dict[str, dict[str, Any]]:
    """Both charts: columns and axes.

    Args:
        points: one per second, the latest last: running runs, waiting runs, and tokens.
    """
    seconds = list(range(1 - len(points), 1))
    running, waiting, speed = (list(row) for row in zip(*points, strict=True)) if points else ([], [], [])
    tops = {"queue": max([4, *running, *waiting]), "speed": max([10, *speed])}
    rows = {"queue": (running, waiting), "speed": (speed,)}
    return {
        name: {
            "columns": [{"x": seconds, "y": row} for row in rows[name]],
            "layout": {"yaxis.range": [0, 1.06 * nice_ceiling(top)]},
        }
        for name, top in tops.items()
    }
