"""Plotly figures as pure functions: no gradio, no state, and data only through patches."""

from functools import partial

from visualize.charts import pool_charts, rounds_chart, timing_chart
from visualize.charts.base import Charts, figure_of

CHARTS: Charts = {
    "rounds": rounds_chart.figure,
    "blocks": pool_charts.occupancy_figure,
    "recomputed": partial(figure_of, "recomputed"),
    "timing": timing_chart.figure,
}
"""The stage's charts, left to right; without a KV cache the third takes the second's place."""
