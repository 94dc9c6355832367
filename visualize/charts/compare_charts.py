"""A comparison's bars: tokens per second of each setting, every run as a point, quartiles as a line."""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial

from lab.measure.comparison import MAX_CONFIGS, Summary
from lab.util.messages import counted
from visualize.charts import theory_charts as theory
from visualize.charts.base import Drawn, add, figure_of
from visualize.format_numbers import three
from visualize.text import label

MARKS = "●■◆▲★✚"
"""A setting's mark on the page, by its place."""
assert len(MARKS) >= MAX_CONFIGS
ROOM = 1.5
"""Length of the axis in longest bars: the text beside them needs the rest."""


def times(ratio: float) -> str:
    """A speed-up in the notation used everywhere."""
    return f"{three(ratio)}×"


bars_figure = partial(figure_of, "settings")


def bars(names: Sequence[str], summaries: Mapping[str, Summary]) -> Drawn:
    """Tokens per second by setting; a setting without a run keeps its place but has no bar."""
    bar, runs, gain = ({"x": [], "y": [], "customdata": []} for _ in range(3))
    quartiles, factors = {"x": [], "y": []}, {"x": [], "y": [], "text": []}
    edge = ROOM * max(max(summary.rates) for summary in summaries.values())
    for place, name in enumerate(names):
        if name not in summaries:
            continue
        summary = summaries[name]
        rate = summary.tokens_per_second
        said = (
            f"{label(name)}: {three(rate.median)} tokens/s, quartiles {three(rate.lower)} to {three(rate.upper)}, "
            f"{counted(len(summary.rates), 'run')}"
        )
        gains = place and summary.clear and statistics.median(summary.factors) > 1
        add(gain if gains else bar, rate.median, place, said)
        for end in (rate.lower, rate.upper, None):
            add(quartiles, end, place)
        for one in summary.rates:
            add(runs, one, place, three(one))
        if summary.speedup:
            faster = _faster(summary.factors, clear=summary.clear)
            add(factors, edge, place, f"<b>{times(1)}</b>" if place == 0 else faster)
    return [bar, quartiles, runs, factors, gain], {
        "xaxis.range": [0, edge],
        "yaxis.range": [len(names) - 0.5, -0.5],
        "yaxis.tickvals": list(range(len(names))),
        "yaxis.ticktext": [f"{label(name, 13)} {mark} " for name, mark in zip(names, MARKS, strict=False)],
    }


def recorded_bars(names: Sequence[str], rates: Mapping[str, Sequence[float]]) -> Drawn | None:
    """The bars and runs of another machine at the settings' places; None: it knows none of them."""
    known = [(place, rates[name]) for place, name in enumerate(names) if name in rates]
    if not known:
        return None
    bar = {"x": [statistics.median(some) for _, some in known], "y": [place for place, _ in known]}
    runs = {"x": [one for _, some in known for one in some], "y": [place for place, some in known for _ in some]}
    return [bar, {"x": [], "y": []}, runs, {"x": [], "y": []}], {"xaxis.range": [0, ROOM * max(runs["x"])]}


def _faster(factors: Sequence[float], *, clear: bool) -> str:
    """A speed-up, written according to how certain it is."""
    factor = times(statistics.median(factors))
    if len(factors) == 1:
        return f"{factor},<br>one run"  # on one line it would overlap the bars
    if clear:
        return f"<b>{factor}</b>"
    return "≈ same" if len(factors) > 2 else "too few<br>repeats"


CHARTS = {"bars": bars_figure, **theory.CHARTS}
"""Every chart of the Compare page."""
