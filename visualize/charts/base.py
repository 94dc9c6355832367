"""The figures' common parts: a look for light and dark, and columns that patches fill.

A figure comes from Python without data: traces, layout and colours. Its data are
*columns*, one dict of lists per trace, changed by *patches*. The page's script applies
the same patches to the same columns, without knowing what they mean.
"""

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from visualize.states import DRAFT_TIME, OWN, STATES

Columns = list[dict[str, list[Any]]]
"""Per trace: column name ("x", "y", "base", "color", "pattern", "customdata") to values."""

Patch = list[Any]
"""``[trace, index, {column: value}]``: set one row, or append it when ``index`` is None."""

WINDOW = 16
"""Rounds in view at once; the charts that count rounds show the same ones."""
TURN = 6
"""Rounds by which the window moves when the next does not fit: in between it stays still, to be readable."""

_FIGURES = tomllib.loads(Path(__file__).with_name("figures.toml").read_text("utf-8"))
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Look:
    """Colours that stand for no state. ``paper`` is the panel's background (glyphs are cut out of it)."""

    dark: bool
    ink: str
    muted: str
    grid: str
    faint: str
    paper: str
    verify: str
    other: str


LIGHT = Look(False, "#1d2430", "#566072", "#e3e7ee", "#d0d7e2", "#ffffff", "#7d899c", "#c6cdd8")
DARK = Look(True, "#e8ecf3", "#a4aec0", "#2c3442", "#39435a", "#171c25", "#7f8ba0", "#4d586c")


def look(dark: bool) -> Look:
    return DARK if dark else LIGHT


def blank(traces: list[Any], dark: bool, **layout: Any) -> go.Figure:
    """A figure with the shared look, no template and no data of its own."""
    colours = look(dark)
    axis = {
        "gridcolor": colours.grid,
        "zeroline": False,
        "tickfont": {"color": colours.muted, "size": 11},
        "fixedrange": False,
        "ticks": "",
    }
    apart = {"xaxis": {"ticklabelstandoff": 5}, "yaxis": {}}  # keeps the two zeros at the origin apart
    axes = {name: axis | more | layout.pop(name, {}) for name, more in apart.items()}
    return go.Figure(
        traces,
        {
            "template": go.layout.Template(),
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": FONT, "color": colours.ink, "size": 12},
            "margin": {"l": 54, "r": 10, "t": 4, "b": 24} | layout.pop("margin", {}),
            "showlegend": False,
            "hovermode": "closest",
            "hoverlabel": {"bgcolor": colours.paper, "bordercolor": colours.muted, "font": {"color": colours.ink}},
            "dragmode": "pan",
            "uirevision": "keep",
            **axes,
            **layout,
        },
    )


def figure_of(name: str, dark: bool = False) -> go.Figure:
    """The empty figure of that name in ``figures.toml``."""
    layout = coloured(_FIGURES[name], dark)
    return blank(layout.pop("traces"), dark, **layout)


def coloured(part: Any, dark: bool) -> Any:
    """A part of a figure with its colours, which are there by name, in one of the looks."""
    match part:
        case dict():
            return {name: coloured(value, dark) for name, value in part.items()}
        case list():
            return [coloured(value, dark) for value in part]
        case str() if part.startswith("$"):
            state, named = STATES.get(part[1:]), {"own": OWN, "draft_time": DRAFT_TIME} | vars(look(dark))
            return (state.dark if dark else state.light) if state else named[part[1:]]
    return part


def axis_title(text: str, dark: bool) -> dict[str, Any]:
    """An axis title, close to the axis."""
    return {"text": text, "standoff": 4, "font": {"size": 11.5, "color": look(dark).muted}}


def legend(dark: bool, **more: Any) -> dict[str, Any]:
    """A legend above the chart whose entries cannot be switched."""
    entries = {"itemclick": False, "itemdoubleclick": False, "font": {"color": look(dark).muted, "size": 11}}
    return {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", **entries, **more}


def words(dark: bool, size: float, where: str = "middle right", *, muted: bool = False, **more: Any) -> go.Scatter:
    """A trace of texts in the chart."""
    colour = look(dark).muted if muted else look(dark).ink
    of: dict[str, Any] = {"hoverinfo": "skip", "cliponaxis": False, "textposition": where} | more
    return go.Scatter(mode="text", textfont={"color": colour, "size": size}, **of)


Charts = Mapping[str, Callable[[bool], go.Figure]]
"""A page's charts by name: each function makes the empty figure for light or dark."""


def looks(make: Callable[[bool], go.Figure]) -> dict[str, dict[str, Any]]:
    """An empty figure in both looks, as JSON for the page."""
    return {name: json.loads(make(dark).to_json()) for name, dark in (("light", False), ("dark", True))}


def shells(charts: Charts, *, start: bool = False) -> dict[str, dict[str, Any]]:
    """Every chart's empty figure in both looks, as JSON for the page, and if patches fill it its first columns."""
    first = empty(charts) if start else {}
    return {name: looks(make) | ({"start": first[name]} if start else {}) for name, make in charts.items()}


def empty(charts: Charts) -> dict[str, Columns]:
    """Every chart's columns before there are any points."""
    return {name: [{"x": [], "y": []} for _ in make(False).data] for name, make in charts.items()}


def add(columns: dict[str, list[Any]], *row: Any) -> None:
    """Append a row to a trace's columns, in their order."""
    for column, value in zip(columns.values(), row, strict=True):
        column.append(value)


Drawn = tuple[Columns, dict[str, Any]]
"""A chart's columns, per trace, and its layout changes."""


def drawn(charts: Mapping[str, Drawn]) -> dict[str, dict[str, Any]]:
    """Charts as the page's script takes them."""
    return {name: {"columns": columns, "layout": layout} for name, (columns, layout) in charts.items()}


def window(step: int) -> list[float]:
    """The x range that contains ``step``; the first such range begins with the prefill, step 0."""
    first = TURN * max(0, math.ceil((step - WINDOW + 1) / TURN))
    return [first - 0.5, first + WINDOW - 0.5]


def short(value: float) -> float:
    """Four significant digits: as many as a person reads, in half the bytes."""
    return float(f"{value:.4g}")


def with_room(ends: Mapping[str, float]) -> list[str]:
    """The lines that have room for their names, by where they end: of several that end at nearly the same height, the
    first."""
    found: list[str] = []
    for name, end in ends.items():
        if all(abs(end - ends[other]) > 0.07 * max(ends.values()) for other in found):
            found.append(name)
    return found


def nice_ceiling(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 5, 7.5, 10, 15 ... at or above ``value``, so that an axis moves rarely."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 3, 5, 7.5, 10) if value <= step * power * (1 + 1e-9))
