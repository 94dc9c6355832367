"""A verdict for the page: how it came about, in words and as the data of its chart (``figures.verdict``)."""

from __future__ import annotations

from typing import Any

from lab.trace.events import Bonus, Distributions, Proposed, Recovered, Verified
from lab.trace.verdict_rounding import round_verdict, written
from visualize.charts import verdict_chart as chart
from visualize.charts.base import short
from visualize.states import DRAFTER_NAMES, STATES, sentences
from visualize.text import escaped, named

EMPTY: dict[str, list[Any]] = {"x": [], "y": []}


def opened(
    draft_token: Proposed, verdict: Verified, around: Distributions, own: Recovered | Bonus | None, speculative: str
) -> dict[str, Any]:
    """One draft token as a JSON-able dict.

    Returns:
        ``title``, ``say``: the verdict in words. ``columns``, ``layout``: its chart's.

    Raises:
        ValueError, LookupError: the events contradict each other.
    """
    replaced = own if isinstance(own, Recovered) and not verdict.accepted else None
    state = STATES["accepted" if verdict.accepted else "rejected"]
    marks = {around.token_ids[0]: state.glyph}
    if replaced:
        marks |= {replaced.token_id: STATES["recovered"].glyph}
    bars = {name: getattr(around, name) for name in ("p", "q", "residual")}
    heights = [max(values) for values in zip(*filter(None, bars.values()), strict=True)]
    shown = _shown(around, heights, set(marks))
    named_bars = [escaped(around.texts[i]) for i in shown]
    columns = [
        {"x": [*range(len(shown))], "y": [short(values[i]) for i in shown], "customdata": named_bars}
        if values
        else EMPTY
        for values in bars.values()
    ]
    bar = None if verdict.u is None else short(verdict.u * verdict.q)
    names = [f"{marks.get(around.token_ids[i], '')} {escaped(around.texts[i], limit=9)}".strip() for i in shown]
    title = f"Round {verdict.step}, draft token {verdict.position + 1} {state.glyph} {named(draft_token.text)}"
    return {
        "title": title,
        "say": _say(verdict, around.overlap, replaced, speculative),
        "columns": [*columns, EMPTY if bar is None else {"x": [-chart.WIDE, chart.WIDE], "y": [bar, bar]}],
        "layout": {
            "xaxis.range": [-0.6, len(shown) - 0.4],
            "xaxis.tickvals": [*range(len(shown))],
            "xaxis.ticktext": names,
            "yaxis.range": [0, short(1.06 * max([*heights, bar or 0])) or 1],
        },
    }


def _shown(around: Distributions, heights: list[float], marked: set[int]) -> list[int]:
    """Indices of the tokens that fit: the draft token, then those that are marked or highest, sorted by p."""
    others = sorted(range(1, len(heights)), key=lambda i: (around.token_ids[i] not in marked, -heights[i]))
    return [0, *sorted(others[: chart.MOST - 1], key=lambda i: -around.p[i])]


def _say(verdict: Verified, overlap: float | None, replaced: Recovered | None, speculative: str) -> str:
    kept = verdict.accepted
    place = f" In its place: {named(replaced.text)}" if replaced else ""
    if verdict.u is None:
        synthetic = speculative == "synthetic"
        rule = sentences(speculative, greedy=not synthetic)["accepted" if kept else "rejected"]
        why = "It has no q." if synthetic else "Greedy draws nothing: p and q are shown for comparison only."
        return f"{rule.format(p=f'{verdict.p:.3g}', q=f'{verdict.q:.3g}')}{place and place + '.'} {why}"
    numbers = round_verdict(verdict.p, verdict.q, verdict.u, accepted=kept)
    p, q, u = map(written, (numbers.p, numbers.q, numbers.u))
    product = f"u q = {u} × {q} = {written(numbers.product)}"
    rule = (
        f"Acceptance probability min(1, p / q) = {written(numbers.chance)}. The random draw was u = {u}: {product} is "
        f"{'below' if kept else 'not below'} p = {p}, so it was {'accepted' if kept else 'rejected'}."
    )
    drawn = f"{place}, drawn from the resample distribution norm(max(0, p − q))." if replaced else ""
    certain = f" {DRAFTER_NAMES[speculative].capitalize()} draws nothing: its q is 1." if speculative == "ngram" else ""
    here = (
        ""
        if overlap is None or certain
        else f" At this position {overlap:.0%} of the draft's tokens would be accepted: Σ min(p, q)."
    )
    return f"{rule}{drawn}{here}{certain}"
