"""Plotly figures as pure functions: no gradio, no state, and data only through patches."""

from visualize.charts import pool_charts, recompute_chart, rounds_chart, timing_chart
from visualize.charts.base import Charts

CHARTS: Charts = {
    "rounds": rounds_chart.figure,
    "blocks": pool_charts.occupancy_figure,
    "recomputed": recompute_chart.figure,
    "timing": timing_chart.figure,
}
"""The stage's charts, left to right; without a KV cache the third takes the second's place."""
