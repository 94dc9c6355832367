"""Memory as three charts: bytes against length, sequences that fit, and where a device's memory goes.

KV formats are distinguished by dashes and words; the chosen one has the colour of the cache.
"""

from functools import partial
from typing import Any

import plotly.graph_objects as go

from lab.memory.capacity import POLICIES, Deployment, MemorySplit
from lab.memory.catalogue import GiB
from lab.settings import KV_DTYPES
from lab.util.messages import counted
from visualize.charts.base import Drawn, blank, figure_of, look, with_room
from visualize.format_numbers import digits
from visualize.states import OWN

DASHES = {
    "auto": "solid",
    "int8": "dash",
    "int4": "dot",
    "fp8": "longdash",
    "fp8_per_token_head": "dashdot",
    "int4_per_token_head": "longdashdot",
    "turboquant_3bit_nc": "8px 2px",
}
PARTS = ("weights", "set_aside", "tokens", "vain", "unused")
"""Of ``MemorySplit``, as they are stacked."""
UNITS = {"PiB": 2**50, "GiB": GiB, "MiB": 2**20, "KiB": 2**10, "B": 1}
"""No TiB: a device's memory is given in GiB, of which it may have a thousand and more."""
POINTS = 64

Others = dict[str, Deployment]
"""The same deployment in every KV format that its model supports, by format."""


def unit(size: float) -> tuple[str, int]:
    """The largest unit in which ``size`` is at least 1, and its bytes."""
    return next(((name, scale) for name, scale in UNITS.items() if size >= scale), ("B", 1))


def size(count: float) -> str:
    """Bytes in their unit, to three digits: "128 KiB"."""
    name, scale = unit(abs(count))
    return f"{digits(count / scale)} {name}"


# -- bytes against length --------------------------------------------------------------------


def length_figure(dark: bool = False) -> go.Figure:
    """One line per format, the chosen one again in colour, and two points on it: the mean and the longest sequence."""
    colours = look(dark)
    hover = "length %{x:,}: %{y:,.3r} %{fullData.meta}<extra>%{fullData.name}</extra>"
    lines = [
        go.Scatter(
            name=KV_DTYPES[name],
            mode="lines+text",
            line={"color": colours.muted, "dash": dash, "width": 1.5},
            textposition="middle right",
            textfont={"color": colours.ink, "size": 11},
            cliponaxis=False,
            hovertemplate=hover,
        )
        for name, dash in DASHES.items()
    ]
    chosen = go.Scatter(name="chosen", mode="lines", line={"color": OWN, "width": 3.5}, opacity=0.75, hoverinfo="skip")
    marks = go.Scatter(
        name="lengths",
        mode="markers+text",
        marker={"color": OWN, "size": 9, "line": {"color": colours.paper, "width": 1.5}},
        textposition="top left",
        textfont={"color": colours.ink, "size": 11},
        cliponaxis=False,
        hovertemplate=hover,
    )
    return blank(
        [chosen, *lines, marks],
        dark,
        margin={"l": 62, "r": 74, "t": 6, "b": 26},
        xaxis={"range": [0, 1], "nticks": 4, "tickformat": ",d", "tickangle": 0, "showgrid": False},
        yaxis={"range": [0, 1], "nticks": 5},
    )


def length_columns(chosen: Deployment, others: Others) -> Drawn:
    """KiB, MiB or GiB of one sequence against tokens, and the axes."""
    longest, mean = chosen.lengths.longest, chosen.lengths.mean
    most = max(other.sequence_bytes(longest) for other in others.values())
    name, scale = unit(most)
    x = [round(longest * i / POINTS) for i in range(POINTS + 1)]

    def line(deployment: Deployment, text: str) -> dict[str, list[Any]]:
        y = [deployment.sequence_bytes(tokens) / scale for tokens in x]
        return {"x": x, "y": y, "text": [""] * POINTS + [f"\u2002{text}"]}  # beside the mark of the longest

    ends = {chosen.kv_dtype: chosen.token_bytes} | {key: other.token_bytes for key, other in others.items()}
    named = with_room(ends)
    names = {key: KV_DTYPES[key] if key in named else "" for key in DASHES}
    lines = [line(others[key], names[key]) if key in others else {"x": [], "y": []} for key in DASHES]
    marks = {
        "x": [mean, longest],
        "y": [chosen.sequence_bytes(tokens) / scale for tokens in (mean, longest)],
        "text": ["mean", ""],
    }
    top = 1.12 * most / scale
    return [line(chosen, ""), *lines, marks], {
        "xaxis.range": [0, longest],
        "yaxis.range": [0, top],
        "yaxis.ticksuffix": f" {name}",
    }


# -- sequences that fit ----------------------------------------------------------------------


def fit_columns(chosen: Deployment, others: Others) -> Drawn:
    """Sequences by policy and format; the chosen format's name is bold."""
    names = [f"<b>{KV_DTYPES[key]}</b>" if key == chosen.kv_dtype else KV_DTYPES[key] for key in others]
    counts = {policy: [other.sequences(policy) for other in others.values()] for policy in POLICIES}
    columns = [
        {
            "x": some,
            "y": names,
            "text": [f"{count:,}" for count in some],
            "customdata": [counted(count, "sequence") for count in some],
        }
        for some in counts.values()
    ]
    most = max(max(some) for some in counts.values())
    return columns, {"xaxis.range": [0, 1.5 * max(4, most)]}  # the longest bar leaves room for its number


# -- where the memory is ---------------------------------------------------------------------


def split_columns(chosen: Deployment) -> Drawn:
    """GiB by part and policy, contiguous on top."""
    splits: dict[str, MemorySplit] = {policy: chosen.split(policy) for policy in reversed(POLICIES)}
    columns = [
        {"x": [max(0.0, getattr(split, part)) / GiB for split in splits.values()], "y": list(splits)} for part in PARTS
    ]
    return columns, {"xaxis.range": [0, chosen.memory / GiB]}


CHARTS = {"length": length_figure, "fit": partial(figure_of, "fit"), "split": partial(figure_of, "split")}


def columns(chosen: Deployment, others: Others) -> dict[str, Drawn]:
    """Every chart's data and axes."""
    return {
        "length": length_columns(chosen, others),
        "fit": fit_columns(chosen, others),
        "split": split_columns(chosen),
    }
