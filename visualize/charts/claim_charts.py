"""A claim's numbers as a small chart: bars by name, or lines against a number.

Measurements are drawn solid, claims as a tick or a dashed line, and theory beside a measurement as a diamond.
"""

import math
from functools import partial
from typing import Any

from lab.claims.claim import ClaimChart, Series
from visualize.charts.base import Columns, Drawn, figure_of, short

LINES = 4
"""Most measured lines in a chart."""
CLAIMED = 2
"""Most claimed series in a chart: a number, or the two ends of a range."""
MANY = 20
"""Most points of a line that are marked; those of a longer line are not."""
ABSENT: dict[str, Any] = {"x": [], "y": [], "showlegend": False}

CHARTS = {"lines": partial(figure_of, "claim_lines"), "bars": partial(figure_of, "claim_bars")}


def columns(chart: ClaimChart) -> Drawn:
    """The data of every trace of the chart's form, and its axes."""
    drawn = _bars(chart) if chart.form == "bars" else _lines(chart)
    layout: dict[str, Any] = {}
    for axis in chart.log:
        layout |= _logarithmic(axis, [value for one in chart.series for value in getattr(one, axis) if value > 0])
    for axis, title in (("x", chart.x), ("y", chart.y)):
        if title:
            layout[f"{axis}axis.title"] = {"text": title, "standoff": 4, "font": {"size": 11.5}}
    return drawn, layout


def _logarithmic(axis: str, values: list[float]) -> dict[str, Any]:
    """A logarithmic axis with its ticks at 1, 2, 5, 10, 20 ...: Plotly would write "2" at 20. Where the values are too
    near each other for that, its ticks stay."""
    low, high = min(values, default=1), max(values, default=1)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [tick for power in powers for step in (1, 2, 5) if low <= (tick := step * 10.0**power) <= high]
    found = {f"{axis}axis.type": "log"}
    if len(ticks) < 2:
        return found
    return found | {f"{axis}axis.tickvals": ticks, f"{axis}axis.ticktext": [f"{tick:,g}" for tick in ticks]}


def _lines(chart: ClaimChart) -> Columns:
    claimed = [one for one in chart.series if one.kind == "claimed"]
    lines = [one for one in chart.series if one.kind != "claimed"]
    marked = [row | ({"mode": "lines"} if len(row["x"]) > MANY else {}) for row in _filled(lines, LINES)]
    return [*marked, *_filled(claimed, CLAIMED)]


def _bars(chart: ClaimChart) -> Columns:
    measured = [one for one in chart.series if one.kind == "measured"]
    theory = [one for one in chart.series if one.kind == "formula"]
    claimed = [one for one in chart.series if one.kind == "claimed"]
    bars, diamonds = (measured, theory) if measured else (theory, [])
    rows = [*_filled(bars, 1), *_filled(diamonds, 1), *_filled(claimed, CLAIMED)]
    return [row | {"x": row["y"], "y": row["x"]} for row in rows]


def _filled(series: list[Series], places: int) -> Columns:
    """One row per trace; those without a series are empty."""
    if len(series) > places:
        raise ValueError(f"{len(series)} series for {places} traces: {', '.join(one.name for one in series)}.")
    rows: Columns = [
        {"name": one.name, "x": list(one.x), "y": [short(y) for y in one.y], "showlegend": True} for one in series
    ]
    return [*rows, *(dict(ABSENT) for _ in range(places - len(series)))]
