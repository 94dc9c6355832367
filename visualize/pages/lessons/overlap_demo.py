"""The picture of p and q: for each rule, and with q moved towards p or away from it, all by calculation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lessons.experiments.rules import picture, variation
from lessons.template import WRITE
from visualize.charts import overlap_chart as figures
from visualize.charts.lesson_charts import LINES

MOVES = [place / 5 for place in range(11)]
"""Where q may be moved: at 0 it equals p, at 1 it is as in the run, and there are places beyond."""
SAID = {
    "residual": "p has {residual} over q, exactly as much as is rejected: drawing from that fills every gap.",
    "redrawn_from_p": "It draws again from all of p, though words that q proposes too often have had their share.",
    "without_q": "It does not look at q, and rejects even some of what both have in common.",
}
"""What the picture shows for each rule."""
NOTHING = 5e-4
"""Distances below this are not worth mentioning."""
percent = WRITE["percent"]


def pictures(words: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Every picture that can be chosen: ``frames`` by rule and by place of q, each {proposed, written, said}.

    Args:
        words: "p" and "q" of the run by word, as they were drawn. Every picture has them in falling order of p / q.
    """
    frames = {rule: [_frame(rule, words, to) for to in MOVES] for rule in SAID}
    apart, tops = [], []
    for frame in (frame for some in frames.values() for frame in some):
        apart.append(f"{frame.pop('apart')} apart")
        tops.append(frame.pop("top"))
    return {
        "rules": [LINES[rule][0] for rule in SAID],
        "stops": apart[: len(MOVES)],
        "start": MOVES.index(1),
        "frames": list(frames.values()),
        "layout": figures.layout(len(words["p"]), max(tops)),
    }


def _frame(rule: str, words: Mapping[str, Sequence[float]], to: float) -> dict[str, Any]:
    p, q, kept, replaced = seen = picture(rule, words["p"], words["q"], to)
    written = [a + b for a, b in zip(kept, replaced, strict=True)]
    accepted, apart, off = sum(kept), variation(p, q), variation(p, written)
    end = "What comes out is p." if off < NOTHING else f"What comes out is {percent(off)} away from p."
    said = f"Accepted: {percent(accepted)}, rejected: {percent(max(0.0, 1 - accepted))}."
    return {
        **figures.columns(*seen, residual=rule == "residual"),
        "said": f"{said} {SAID[rule].format(residual=percent(apart))} {end}",
        "apart": percent(apart),
        "top": max(*p, *q, *written),
    }
