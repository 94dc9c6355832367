"""A watched server: its metrics over time, and how draft tokens fare by position.

Time is in seconds since the watching began. Colours are those of the Lab's own pool: blocks in use, running and waiting
requests.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from lab.vllm.completion import ReportedRounds
from visualize.charts import rounds_chart as rounds
from visualize.charts.base import Columns, Patch, add, figure_of, nice_ceiling
from visualize.charts.pool_charts import queue_figure, speed_figure

SECONDS = 300
"""Most seconds in view."""
FIRST = 60
"""Seconds in view at first."""

CHARTS = {
    "usage": partial(figure_of, "usage"),
    "queue": queue_figure,
    "speed": speed_figure,
    "hits": partial(figure_of, "hits"),
    "acceptance": partial(figure_of, "acceptance"),
    "rounds": rounds.figure,
}
LINES = {"usage": 1, "queue": 2, "speed": 1, "hits": 1}
"""The charts that grow with time, and how many lines each has."""


def points(seconds: float, values: dict[str, Sequence[float | None]]) -> dict[str, list[Patch]]:
    """One point of each line; None makes a gap."""
    return {
        name: [[trace, None, {"x": round(seconds, 1), "y": y}] for trace, y in enumerate(values[name])]
        for name in LINES
    }


def layout(seconds: float, most: float, top_speed: float) -> dict[str, dict[str, Any]]:
    """The axes; y axes that grow do so in jumps. ``most``: the most requests at once."""
    time = [max(0.0, round(seconds - SECONDS, 1)), max(float(FIRST), round(seconds, 1))]
    tops = {"queue": nice_ceiling(max(4.0, most)) * 1.06, "speed": nice_ceiling(max(10.0, top_speed))}
    return {name: {"xaxis.range": time} for name in LINES} | {
        name: {"xaxis.range": time, "yaxis.range": [0, top]} for name, top in tops.items()
    }


def acceptance(by_position: Sequence[float]) -> dict[str, Any]:
    """The bars and their axis, on which there is room for only so many labels."""
    positions = list(range(1, len(by_position) + 1))
    columns: Columns = [{"x": positions, "y": [round(share, 4) for share in by_position]}]
    most = max(4, len(positions))
    return {
        "columns": columns,
        "layout": {"xaxis.range": [0.4, most + 0.6], "xaxis.dtick": math.ceil(most / rounds.LABELS)},
    }


def reported_rounds(reported: ReportedRounds) -> dict[str, Any]:
    """An answer's rounds as the Lab draws its own, but without tokens: a server reports only how many were kept."""
    columns: Columns = [{"x": [], "y": [], "customdata": []} for _ in rounds.TRACES]

    def put(number: int, row: int, state: str) -> None:
        add(columns[rounds.TRACES.index(state)], number, row, ["token not reported", "", row])

    for number, (drafted, accepted) in enumerate(zip(reported.drafted, reported.accepted, strict=True), 1):
        put(number, 0, "recovered" if accepted < drafted else "bonus")
        for row in range(1, drafted + 1):
            put(number, row, "accepted" if row <= accepted else "rejected" if row == accepted + 1 else "unjudged")
    most = max(4, *reported.drafted, 0)
    return {"columns": columns, "layout": rounds.layout(len(reported.drafted)) | rounds.rows(most)}
