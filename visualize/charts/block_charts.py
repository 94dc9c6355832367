"""The pool of cache blocks as squares: the state of each, whose it is, and how full.

Squares are bars on a grid: they keep their shape at any size of the panel, and a
second bar inside shows the slots in use. (A heatmap would leak memory when redrawn.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import plotly.graph_objects as go

from lab.util.messages import counted
from visualize.charts.base import Patch, blank, look
from visualize.states import ANOTHERS, GIVEN_BACK, OWN, STATES

TRACES = ("free", "live", "cached", "vain", "fill", "stored")
SHOWN = 1024
"""Most blocks drawn; a larger pool is drawn in part, and the caption says so."""
AT_REST = 128
"""Blocks drawn before the first run has said how many there are."""
SIDE, INSET = 0.84, 0.07
NOTCH = 0.2
"""Side of the mark that says a live block's prefix can be found."""

Came = Literal["own", "found", "copied"]
_PATTERNS: dict[Came, str] = {"own": "", "found": "/", "copied": "."}
_WORDS: dict[Came, str] = {"own": "", "found": "found, not computed again", "copied": "begun as a copy"}


@dataclass(frozen=True, slots=True)
class Block:
    """Known state of a block. ``owner`` None: it belongs to another run's sequence, or to none. A free block with an
    owner was given back: either the run is over, and the block is shown as full as it was, or the last pass took it
    for guesses that were rejected.

    ``came``: how this run got it. ``stored``: its prefix can be found by others.
    ``references``: sequences that have it in their block tables; 0 if unknown.
    ``vain``: slots after the filled ones that the last pass wrote for guesses that were rejected.
    """

    state: Literal["free", "live", "cached"] = "free"
    owner: int | None = None
    index: int = 0
    fill: int = 0
    came: Came = "own"
    stored: bool = False
    references: int = 0
    vain: int = 0


FREE, CACHED, OTHERS = Block(), Block("cached"), Block("live")


def figure(dark: bool = False) -> go.Figure:
    """Free: faint outline. Live: filled as far as it is used. Cached: hatched. Found in the cache: both."""
    colours = look(dark)
    hatch = {"shape": "/", "fgcolor": colours.muted, "size": 5, "solidity": 0.35}
    markers = {
        "free": {"color": "rgba(0,0,0,0)", "line": {"width": 1, "color": colours.faint}},
        "live": {"color": colours.paper, "line": {"width": 1.5, "color": colours.muted}},
        "cached": {"color": "rgba(0,0,0,0)", "line": {"width": 1.2, "color": colours.muted}, "pattern": hatch},
    }
    traces = [
        go.Bar(
            name=name,
            marker=marker,
            width=SIDE,
            hovertemplate="Block %{customdata[0]}: %{customdata[1]}<extra></extra>",
        )
        for name, marker in markers.items()
    ]
    inside = hatch | {"fillmode": "overlay", "fgcolor": colours.paper, "solidity": 0.45}
    fill = {"line": {"width": 0}, "pattern": inside}
    rejected = STATES["rejected"].dark if dark else STATES["rejected"].light
    crossed = {"shape": "\\", "fgcolor": rejected, "size": 4, "solidity": 0.5}
    vain = {"color": "rgba(0,0,0,0)", "line": {"width": 1, "color": rejected}, "pattern": crossed}
    traces.append(go.Bar(name="vain", marker=vain, width=SIDE - 2 * INSET, hoverinfo="skip"))
    traces.append(go.Bar(name="fill", marker=fill, width=SIDE - 2 * INSET, hoverinfo="skip"))
    notch = {"color": colours.ink, "line": {"width": 0}}
    traces.append(go.Bar(name="stored", marker=notch, width=NOTCH, offset=SIDE / 2 - NOTCH, hoverinfo="skip"))
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
    """Columns and rows for a pool, in about the proportions of the panel."""
    shown = min(max(1, num_blocks), SHOWN)
    wide = max(1, math.ceil(math.sqrt(shown * 1.9)))
    return wide, max(1, math.ceil(shown / wide))


def columns(num_blocks: int) -> list[dict[str, list[Any]]]:
    """Every block free."""
    shown = range(min(num_blocks, SHOWN))
    wide, _ = grid(num_blocks)
    rise = dict.fromkeys(("vain", "fill"), SIDE - INSET)  # from the square's lower edge up: the y axis points down
    named = []
    for trace, name in enumerate(TRACES):
        rows = [_rows(block, FREE, 1)[trace] for block in shown]
        place = {"x": [block % wide for block in shown], "base": [block // wide + rise.get(name, 0) for block in shown]}
        named.append(place | {column: [row[column] for row in rows] for column in _rows(0, FREE, 1)[trace]})
    return named


def change(block: int, before: Block, now: Block, block_size: int) -> list[Patch]:
    """The patches that turn ``block``, drawn as ``before``, into what it is ``now``."""
    if block >= SHOWN:
        return []
    rows = zip(_rows(block, before, block_size), _rows(block, now, block_size), strict=True)
    return [[trace, block, row] for trace, (was, row) in enumerate(rows) if row != was]


def _rows(block: int, now: Block, block_size: int) -> list[dict[str, Any]]:
    """A block's row in each of ``TRACES``."""
    words = [block, _words(now, block_size)]
    states = [
        {"y": SIDE if now.state == name else None, "customdata": words if now.state == name else None}
        for name in TRACES[:3]
    ]
    theirs = now.state == "live" and now.owner is None
    filled = 1.0 if theirs else now.fill / block_size
    fill = {
        "y": -round((SIDE - 2 * INSET) * filled, 3) if now.state != "cached" and filled else None,
        "color": ANOTHERS if theirs else OWN if now.state == "live" else GIVEN_BACK,
        "pattern": "x" if theirs else _PATTERNS[now.came],
    }
    # Drawn from the edge too, and what is filled is drawn over it.
    vain = {"y": -round((SIDE - 2 * INSET) * (now.fill + now.vain) / block_size, 3) if now.vain else None}
    return [*states, vain, fill, {"y": NOTCH if now.stored else None}]


def _words(now: Block, block_size: int) -> str:
    if now.state == "free":
        again = f"free again: it was entry {now.index} of sequence {now.owner}'s table"
        in_vain = f"<br>{counted(now.vain, 'slot')} written for rejected draft tokens" if now.vain else ""
        return "free" if now.owner is None else again + in_vain
    if now.state == "cached":
        return "cached, free to take, but its tokens can still be found"
    if now.owner is None:
        return "another sequence's"
    filled = f"{now.fill} of {counted(block_size, 'slot')} filled"
    about = [f"entry {now.index} of sequence {now.owner}'s table", filled]
    about += (
        [f"{now.vain} more written for rejected draft tokens:<br>the next pass writes over them"] if now.vain else []
    )
    about += [_WORDS[now.came]] if now.came != "own" else []
    about += [f"shared by {now.references} sequences when it was found"] if now.references > 1 else []
    about += ["its prefix can be found"] if now.stored else []
    return "<br>".join(about)


def layout(num_blocks: int) -> dict[str, Any]:
    wide, high = grid(num_blocks)
    return {"xaxis.range": [-0.5, wide - 0.5], "yaxis.range": [high - 0.08, -0.08]}
