"""Theory and measurement in one chart: a round on a time axis, curves of speculation, and what grows with the length.

A setting has the same mark everywhere on the page; curves carry their own names.
"""

import math
import statistics
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from lab.engine.adaptive_window import tokens_per_round
from lab.measure.interval import share_interval
from lab.measure.scaling_fit import CACHED, UNCACHED, StepTimes
from lab.measure.theory import Speculated, speedup
from lab.settings import KV_DTYPES
from visualize.charts.base import Drawn, add, axis_title, blank, figure_of, look, nice_ceiling, with_room, words
from visualize.charts.rounds_chart import LABELS
from visualize.charts.timing_chart import PARTS
from visualize.format_numbers import byte_unit, digits

GAMMAS = (1, 2, 4, 8)
"""Gammas whose curves are always drawn."""
POINTS = 50
"""Points per curve, less one."""
OTHER = "verdict, sampling and all else"
EVEN = "1×"
"""The name of the line where nothing is gained or lost."""

Marked = Mapping[str, Speculated]
"""Measurements by their setting's mark."""


# -- parts of the charts with curves ------------------------------------------------------------


class Curves:
    """Any number of curves in one trace, with gaps between, and their names, at their ends, in another."""

    def __init__(self) -> None:
        self.line: dict[str, list[Any]] = {"x": [], "y": []}
        self.names: dict[str, list[Any]] = {"x": [], "y": [], "text": []}

    def add(self, x: list[float], y: list[float], name: str) -> None:
        join(self.line, x, y)
        add(self.names, x[-1], y[-1], name)

    def over_acceptance(self, gamma: int, of: Callable[[float, int], float]) -> None:
        """Add a gamma's curve of ``of(acceptance, gamma)``."""
        xs = [i / POINTS for i in range(POINTS + 1)]
        self.add(xs, [of(x, gamma) for x in xs], f"γ {gamma}")


def join(trace: dict[str, list[Any]], x: list[float], y: list[float]) -> None:
    """Add a line segment, and a gap after it."""
    trace["x"] += [*x, None]
    trace["y"] += [*y, None]


def whiskers(ends: Iterable[tuple[float, float, float]]) -> dict[str, list[Any]]:
    """Vertical lines: x, and y from and to."""
    trace: dict[str, list[Any]] = {"x": [], "y": []}
    for x, low, high in ends:
        join(trace, [x, x], [low, high])
    return trace


def marks(found: Mapping[str, Any], x: Iterable[float], y: Iterable[float], **more: list[Any]) -> dict[str, list[Any]]:
    """The settings' marks at these places."""
    return {"x": list(x), "y": list(y), "text": list(found), **more}


def curves_figure(
    dark: bool = False,
    *,
    x: str,
    xaxis: Mapping[str, Any],
    yaxis: Mapping[str, Any],
    hover: str,
    spread: bool = False,
    margin: tuple[int, int] = (40, 34),
) -> go.Figure:
    """Curves with their names, below settings' marks with ``hover`` texts, perhaps with ``spread``: quartiles or an
    interval through each. ``x``: the axis' title; ``margin``: left and right."""
    colours = look(dark)
    lines = {"theory": colours.muted, "spread": colours.ink} if spread else {"theory": colours.muted}
    traces = [
        go.Scatter(name=name, mode="lines", line={"color": colour, "width": 1.5}, hoverinfo="skip")
        for name, colour in lines.items()
    ]
    said = {"hovertemplate": f"%{{text}} {hover}<extra></extra>", "hoverinfo": None}
    names, measured = (
        words(dark, 11, muted=True, name="names"),
        words(dark, 17, "middle center", name="measured", **said),
    )
    margins = {"l": margin[0], "r": margin[1], "t": 8, "b": 36}
    title = {"title": axis_title(x, dark), **xaxis}
    return blank([traces[0], names, *traces[1:], measured], dark, margin=margins, xaxis=title, yaxis={**yaxis})


# -- a round ------------------------------------------------------------------------------------


def round_columns(found: Marked) -> Drawn:
    bars = {part: {"x": [], "base": [], "y": [], "customdata": []} for part in PARTS}
    names: dict[str, list[Any]] = {"x": [], "y": [], "text": []}
    ticks, rows, longest = [], [], 0.0
    for i, (mark, one) in enumerate(found.items()):
        drafting = [("draft", one.round.draft / one.gamma, "a draft token")] * one.gamma
        verifying = [("target", one.round.target, f"the target's pass over {one.gamma + 1} tokens")]
        step = [("target", one.plain.target, "the target's pass over one token"), ("other", one.plain.other, OTHER)]
        share = one.tokens % 1  # tokens per round are a mean
        alone = int(one.tokens) * step + [(part, share * ms, f"{share:.0%} of {what}") for part, ms, what in step]
        round_parts = [*drafting, *verifying, ("other", one.round.other, OTHER)]
        both = ((f"{mark} {one.tokens:.1f} tokens", 2.4 * i, round_parts), ("no speculation", 2.4 * i + 1, alone))
        for name, row, boxes in both:
            at = 0.0
            for part, ms, what in boxes:
                add(bars[part], ms, at, row, f"{what}: {ms:.2f} ms")
                at += ms
            add(names, at, row, f" {at:.2f} ms")
            ticks.append(name)
            rows.append(row)
            longest = max(longest, at)
    return [*bars.values(), names], {
        "xaxis.range": [0, 1.25 * longest or 1],
        "yaxis.range": [max(rows, default=1) + 0.5, -0.5],
        "yaxis.tickvals": rows,
        "yaxis.ticktext": ticks,
    }


# -- curves of speculation ----------------------------------------------------------------------


def tokens_columns(found: Marked) -> Drawn:
    """Tokens per round against acceptance, one curve per gamma."""
    curves, gammas = Curves(), _gammas(found)
    for gamma in gammas:
        curves.over_acceptance(gamma, tokens_per_round)
    places = marks(found, (one.acceptance for one in found.values()), (one.tokens for one in found.values()))
    return [curves.line, curves.names, places], {"yaxis.range": [0.5, max(gammas) + 1.8]}


def speedup_columns(found: Marked) -> Drawn:
    """Speed-up against gamma, one curve per setting: what its acceptance and cost predict."""
    curves, widest, tops = Curves(), max(_gammas(found)), [1.0]
    curves.add([1, 1.1 * widest], [1.0, 1.0], EVEN)
    for mark, one in found.items():
        ys = [speedup(one.acceptance, gamma, one.cost) for gamma in range(1, widest + 1)]
        curves.add(list(range(1, widest + 1)), ys, mark)
        tops += [*ys, one.speedup.upper]
    curves.names["x"][1:] = [1.04 * widest] * len(found)  # clear of the marks at the last gamma, and of the name 1×
    return [curves.line, curves.names, *_measured(found, lambda one: one.gamma)], {
        "xaxis.range": [0.5, 1.11 * widest],
        "xaxis.dtick": math.ceil(widest / LABELS),
        "yaxis.range": [0, nice_ceiling(1.05 * max(tops))],
    }


def gains_columns(found: Marked) -> Drawn:
    """Speed-up against acceptance, one curve per gamma, for one draft cost: the settings' median."""
    curves, top = Curves(), 1.0
    if found:
        cost = statistics.median(one.cost for one in found.values())
        curves.add([0, 1], [1.0, 1.0], EVEN)
        for gamma in _gammas(found):
            curves.over_acceptance(gamma, lambda a, gamma: speedup(a, gamma, cost))
        # every curve is highest at its end
        top = max([*curves.names["y"], *(one.speedup.upper for one in found.values())])
    measured = _measured(found, lambda one: one.acceptance)
    return [curves.line, curves.names, *measured], {"yaxis.range": [0, nice_ceiling(1.05 * top)]}


def _measured(found: Marked, x: Callable[[Speculated], float]) -> list[dict[str, list[Any]]]:
    """Speed-ups with their quartiles, and the settings' marks."""
    some = found.values()
    spread = whiskers((x(one), one.speedup.lower, one.speedup.upper) for one in some)
    return [spread, marks(found, map(x, some), (one.speedup.median for one in some))]


def positions_columns(found: Marked) -> Drawn:
    """Acceptance of verified draft tokens by position; in theory it is the same at all of them.

    With Wilson intervals, as if draft tokens were independent. Within one text they are not, and a single text cannot
    show how much they depend on each other: the intervals are too narrow. Settings are drawn slightly side by side."""
    curves, spread = Curves(), []
    places: dict[str, list[Any]] = {"x": [], "y": [], "text": [], "customdata": []}
    for place, (mark, one) in enumerate(found.items()):
        beside = 0.12 * (place - (len(found) - 1) / 2)
        curves.add([0.7, one.gamma + 0.3], [one.acceptance] * 2, mark)
        for position, (accepted, verified) in enumerate(zip(one.accepted, one.verified, strict=True), 1):
            if not verified:
                continue
            sure = share_interval(accepted, verified)
            spread.append((position + beside, sure.low, sure.high))
            said = (
                f"{accepted} of {verified} accepted<br>95% if independent: {sure.low:.0%} to {sure.high:.0%} "
                "(Wilson, 95%)"
            )
            add(places, position + beside, accepted / verified, mark, said)
    widest = max((one.gamma for one in found.values()), default=4)
    return [curves.line, curves.names, whiskers(spread), places], {
        "xaxis.range": [0.5, widest + 0.7],
        "xaxis.dtick": math.ceil(widest / LABELS),
    }


def _gammas(found: Marked) -> list[int]:
    return sorted({*GAMMAS, *(one.gamma for one in found.values())})


def columns(found: Marked) -> dict[str, Drawn]:
    """The data and axes of all charts of speculation."""
    return {
        "round": round_columns(found),
        "tokens": tokens_columns(found),
        "speedup": speedup_columns(found),
        "gains": gains_columns(found),
        "positions": positions_columns(found),
    }


# -- what grows with the length of a text ---------------------------------------------------------


def growth_columns(times: Mapping[str, StepTimes]) -> Drawn:
    """The axis fits the medians: a step that was held up is far above all others, perhaps out of view."""
    curves, dots, top = Curves(), [], 0.0
    for name in (CACHED, UNCACHED):
        one = times[name]
        begin, end = one.lengths[0], one.lengths[-1]
        xs = [begin + (end - begin) * i / POINTS for i in range(POINTS + 1)]
        ys = [one.shown(x) for x in xs]
        curves.add(xs, ys, name)
        dots.append({"x": list(one.lengths), "y": [round(ms, 3) for ms in one.ms]})
        top = max(top, *ys, *one.medians[1])
    lengths = times[UNCACHED].lengths
    layout = {"xaxis.range": [lengths[0] - 2, lengths[-1] + 2], "yaxis.range": [0, nice_ceiling(1.15 * top)]}
    return [*dots, curves.line, curves.names], layout


def cache_columns(token_bytes: Mapping[str, int], used: Mapping[str, tuple[int, int]]) -> Drawn:
    """Bytes of cache against the text's length, one line per format.

    Args:
        token_bytes: the target's bytes per token, by format.
        used: tokens and bytes that runs held, by mark.
    """
    longest = 1.15 * max((tokens for tokens, _ in used.values()), default=1000)  # names are to the right of the marks
    most = max([*(longest * each for each in token_bytes.values()), *(size for _, size in used.values())], default=1000)
    scale, unit = byte_unit(most)
    curves = Curves()
    named = with_room(token_bytes)
    for name, each in token_bytes.items():
        curves.add([0, longest], [0, longest * each / scale], KV_DTYPES[name] if name in named else "")
    held = [size / scale for _, size in used.values()]
    said = [f"{digits(size)} {unit}" for size in held]
    places = marks(used, (tokens for tokens, _ in used.values()), held, customdata=said)
    return [curves.line, curves.names, places], {
        "xaxis.range": [0, longest],
        "yaxis.range": [0, nice_ceiling(most / scale)],
        "yaxis.ticksuffix": f" {unit}",
    }


_CURVES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
CHARTS = {
    "round": partial(figure_of, "round"),
    **{name: partial(curves_figure, **how) for name, how in _CURVES.items()},
    "growth": partial(figure_of, "growth"),
}
"""Each makes its chart's empty figure for light or dark."""
