"""A verdict for the page: how it came about, in words and as the data of its chart (``figures.verdict``)."""

from collections.abc import Sequence
from typing import Any

from lab.trace.events import Bonus, Distributions, Proposed, Recovered, Verified
from lab.trace.verdict_rounding import in_order, round_verdict, significant, written
from visualize.charts import verdict_chart as chart
from visualize.charts.base import short
from visualize.states import DRAFTER_NAMES, STATES, sentences
from visualize.text import escaped, named

EMPTY: dict[str, list[Any]] = {"x": [], "y": []}


def opened(
    draft_token: Proposed,
    verdict: Verified,
    around: Distributions,
    own: Recovered | Bonus | None,
    speculative: str,
    round: Sequence[Verified] = (),
    *,
    drawn: bool = True,
) -> dict[str, Any]:
    """One draft token as a JSON-able dict. ``round``: all verdicts of its round, by which block verification decides.
    ``drawn``: from q; otherwise it is the draft's likeliest token, and q is 1.

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
    typical = verdict.threshold is not None and verdict.product is None
    if typical:
        bars["residual"] = None  # it is p
    heights = [max(values) for values in zip(*filter(None, bars.values()), strict=True)]
    shown = _shown(around, heights, set(marks))
    named_bars = [escaped(around.texts[i]) for i in shown]
    columns = [
        {"x": [*range(len(shown))], "y": [short(values[i]) for i in shown], "customdata": named_bars}
        if values
        else EMPTY
        for values in bars.values()
    ]
    standard = verdict.u is not None and verdict.threshold is None
    bar = short(verdict.u * verdict.q) if standard else short(verdict.threshold) if typical else None
    line = EMPTY if bar is None else {"x": [-chart.WIDE, chart.WIDE], "y": [bar, bar]}
    names = [f"{marks.get(around.token_ids[i], '')} {escaped(around.texts[i], limit=9)}".strip() for i in shown]
    title = f"Round {verdict.step}, draft token {verdict.position + 1} {state.glyph} {named(draft_token.text)}"
    return {
        "title": title,
        "say": _say(verdict, around.overlap, replaced, speculative, round, drawn=drawn and speculative != "ngram"),
        "columns": [*columns, EMPTY if typical else line, line if typical else EMPTY],
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


def _say(
    verdict: Verified,
    overlap: float | None,
    replaced: Recovered | None,
    speculative: str,
    round: Sequence[Verified],
    *,
    drawn: bool,
) -> str:
    kept = verdict.accepted
    place = f" In its place: {named(replaced.text)}" if replaced else ""
    if verdict.product is not None:
        return _by_block(verdict, place, round)
    if verdict.threshold is not None:
        return _by_likelihood(verdict, place)
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
    instead = f"{place}, drawn from the resample distribution norm(max(0, p − q))." if replaced else ""
    certain = "" if drawn else f" {DRAFTER_NAMES[speculative].capitalize()} draws nothing: its q is 1."
    here = (
        ""
        if overlap is None or certain
        else f" At this position {overlap:.0%} of the draft's tokens would be accepted: Σ min(p, q)."
    )
    return f"{rule}{instead}{here}{certain}"


def _by_block(verdict: Verified, place: str, round: Sequence[Verified]) -> str:
    """Block verification: the running product, the block's own test, and the longer blocks'."""
    own, last = verdict.position, sum(one.accepted for one in round)
    before = round[own - 1].product if own else 1.0
    p, q, product = (written(significant(number)) for number in (verdict.p, verdict.q, verdict.product))
    factor = "" if before == 1 else f"{written(significant(before))} "
    times = factor and f"{factor}× "
    said = (
        f"Running product P = min(1, {times}p / q) = min(1, {times}{p} / {q}) = {product}: the probability, on "
        f"average over what follows, that the block up to here is kept. {_test(verdict, 'It')}"
    )
    if not verdict.accepted:
        longer = "every longer block failed too, so it was rejected" if own + 1 < len(round) else "it was rejected"
        drawn = f"{place}, drawn from norm(max(0, {factor}p − q))." if place else ""
        return f"{said}; {longer}.{drawn}"
    if own + 1 == last:
        return f"{said}: accepted{'' if last == 1 else ', with all before it'}."
    return f"{said}. {_test(round[last - 1], f'The block up to draft token {last}')}: accepted with it."


def _test(verdict: Verified, block: str) -> str:
    u, threshold = in_order(verdict.u, verdict.threshold)
    passed = verdict.u < verdict.threshold
    compared = f"u = {written(u)} is {'' if passed else 'not '}below its threshold h = {written(threshold)}"
    return f"{block} {'passed' if passed else 'failed'}: the random draw {compared}"


def _by_likelihood(verdict: Verified, place: str) -> str:
    """Typical acceptance, and how far it moves the distribution here."""
    p, threshold = map(written, in_order(verdict.p, verdict.threshold))
    above, kept = ("above", "accepted") if verdict.accepted else ("not above", "rejected")
    drawn = f"{place}, drawn from p." if place else ""
    moved = verdict.total_variation
    lossy = "" if moved is None else f" Lossy: what comes out here is {moved:.1%} from p (total variation)."
    return (
        f"Typical acceptance, without a draw: p = {p} is {above} min(0.09, 0.3 exp(−H)) = {threshold}, where H is the "
        f"entropy of p, so it was {kept}.{drawn}{lossy}"
    )
