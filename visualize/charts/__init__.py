"""Plotly figures as pure functions: no gradio, no state, and data only through patches."""

from typing import Any

from visualize.charts import pool_charts
from visualize.charts import recompute_chart as recomputed
from visualize.charts import rounds_chart as rounds
from visualize.charts import timing_chart as timing
from visualize.charts import verdict_chart as verdict
from visualize.charts.base import Columns, looks

CHARTS = {
    "rounds": rounds.figure,
    "blocks": pool_charts.occupancy_figure,
    "recomputed": recomputed.figure,
    "timing": timing.figure,
}
"""The stage's charts, left to right; without a KV cache the third takes the second's place. Each function returns the
empty figure for light or dark."""


def start() -> dict[str, Columns]:
    """Every chart's columns before a run: nothing has happened yet."""
    return {
        "rounds": rounds.columns(),
        "blocks": pool_charts.columns()["occupancy"],
        "recomputed": recomputed.columns(),
        "timing": timing.columns(),
    }


def shells() -> dict[str, dict[str, Any]]:
    """Every chart's empty figure in both looks, and its first columns, as JSON for the page."""
    columns = start()
    return {name: looks(make) | {"start": columns[name]} for name, make in CHARTS.items()}


__all__ = [
    "CHARTS",
    "Columns",
    "looks",
    "recomputed",
    "rounds",
    "shells",
    "start",
    "timing",
    "verdict",
]
