"""The pool of cache blocks as squares: who owns each, how full it is, what state it is in.

Squares are bars on a grid: they keep their shape at any size of the panel, and a
second bar inside shows the slots in use. (A heatmap would leak memory when redrawn.)
"""

from __future__ import annotations

import math
from typing import Any, Literal

import plotly.graph_objects as go

from visualize.figures.base import Patch, blank, look
from visualize.vocabulary import OWNERS

BlockState = Literal["free", "live", "cached"]
TRACES = ("free", "live", "cached", "fill")
SHOWN = 1024
"""Blocks drawn at most; a larger pool is drawn in part, and the caption says so."""
AT_REST = 128
"""Blocks drawn before the first run has said how many there are."""
SIDE, INSET = 0.84, 0.07
_LIVE = "sequence %{customdata[1]}, entry %{customdata[2]} of its table<br>%{customdata[3]} slots filled"
_CACHED = "free to take, but the tokens in it can still be found"


def figure(dark: bool = False) -> go.Figure:
    """Free: faint outline. Live: outlined and filled as far as it is used. Cached: hatched."""
    colours = look(dark)
    free = {"color": "rgba(0,0,0,0)", "line": {"width": 1, "color": colours.faint}}
    live = {"color": colours.paper, "line": {"width": 1.5, "color": colours.muted}}
    cached = {
        "color": "rgba(0,0,0,0)",
        "line": {"width": 1.2, "color": colours.muted},
        "pattern": {"shape": "/", "fgcolor": colours.muted, "size": 5, "solidity": 0.35},
    }
    traces = [
        go.Bar(name=name, marker=marker, width=SIDE, hovertemplate=f"Block %{{customdata[0]}}: {words}<extra></extra>")
        for name, marker, words in (("free", free, "free"), ("live", live, _LIVE), ("cached", cached, _CACHED))
    ]
    traces.append(go.Bar(name="fill", marker={"line": {"width": 0}}, width=SIDE - 2 * INSET, hoverinfo="skip"))
    hidden = {"visible": False, "showgrid": False}
    return blank(
        traces,
        dark,
        barmode="overlay",
        margin={"l": 4, "r": 4, "t": 4, "b": 4},
        xaxis={**hidden, "range": layout(AT_REST)["xaxis.range"], "constrain": "domain"},
        yaxis={**hidden, "range": layout(AT_REST)["yaxis.range"], "scaleanchor": "x", "constrain": "domain"},
    )


def grid(num_blocks: int) -> tuple[int, int]:
    """Columns and rows for a pool, about as wide as the panel is."""
    shown = min(max(1, num_blocks), SHOWN)
    wide = max(1, math.ceil(math.sqrt(shown * 1.9)))
    return wide, max(1, math.ceil(shown / wide))


def columns(num_blocks: int) -> list[dict[str, list[Any]]]:
    """Every block free."""
    shown = min(num_blocks, SHOWN)
    wide, _ = grid(num_blocks)

    def trace(height: float | None, rise: float = 0.0) -> dict[str, list[Any]]:
        return {
            "x": [block % wide for block in range(shown)],
            "base": [block // wide + rise for block in range(shown)],
            "y": [height] * shown,
        }

    named = [trace(SIDE), trace(None), trace(None)]
    for state in named:
        state["customdata"] = [[block] for block in range(shown)]
    return [*named, trace(None, SIDE - INSET) | {"color": [OWNERS[0]] * shown}]


def cell(block: int, state: BlockState, block_size: int, owner: int = 0, index: int = 0, fill: int = 0) -> list[Patch]:
    """Show ``block`` in a new state or with a new owner, ``fill`` of its slots in use."""
    if block >= SHOWN:
        return []
    states = [[trace, block, {"y": SIDE if name == state else None}] for trace, name in enumerate(TRACES[:3])]
    owned = [3, block, {"color": OWNERS[owner % len(OWNERS)]}]
    return [*states, owned, *level(block, block_size, owner, index, fill if state == "live" else 0)]


def level(block: int, block_size: int, owner: int, index: int, fill: int) -> list[Patch]:
    """Show a block filled so far. The bar grows from the square's lower edge: the y axis points down."""
    if block >= SHOWN:
        return []
    height = -round((SIDE - 2 * INSET) * fill / block_size, 3) if fill else None
    return [[1, block, {"customdata": [block, owner, index, f"{fill} of {block_size}"]}], [3, block, {"y": height}]]


def layout(num_blocks: int) -> dict[str, Any]:
    wide, high = grid(num_blocks)
    return {"xaxis.range": [-0.5, wide - 0.5], "yaxis.range": [high - 0.08, -0.08]}
