"""Theory beside a comparison, and the growth of times with the text, as JSON for the page."""

from collections.abc import Mapping, Sequence
from typing import Any

from lab.config import EngineConfig
from lab.measure.comparison import summarise
from lab.measure.interval import LEVEL
from lab.measure.scaling_fit import CACHED, EXPONENTS, UNCACHED, StepTimes
from lab.measure.theory import Speculated, speculated, without_speculation
from lab.trace.events import StepTimed
from lab.trace.run import Run
from lab.util.messages import listed
from visualize.charts import theory_charts as figures
from visualize.charts.base import drawn
from visualize.charts.compare_charts import MARKS, times
from visualize.format_numbers import digits
from visualize.reduce.compare_report import faster

GROWTH_TOKENS = 200
"""Without a cache the last of them takes a few dozen times what it takes with one."""
WIDEST = 1.0
"""Widest interval of an exponent that is still informative: within a wider one, linear growth may be quadratic."""
MISSING = (
    "To place runs on these curves, compare a setting with speculation and a fixed γ with one without it, both "
    "with the same cache."
)
NO_WHOLE_ROUND = "Not on these curves, because no round had all its draft tokens: "


def theory(
    configs: Mapping[str, EngineConfig], runs: Mapping[str, Sequence[Run]], token_bytes: Mapping[str, int]
) -> dict[str, Any]:
    """The curves, and on them the settings that speculate; a sentence if there are none, or some are missing.
    ``token_bytes``: bytes per token in the target's cache, by format."""
    found: dict[str, Speculated] = {}
    against: dict[str, str] = {}
    left_out: list[str] = []
    for name, some in runs.items():
        config, plain = configs[name], without_speculation(name, configs)
        if plain is None or config.speculative == "off" or config.gamma_varies:
            continue
        if one := speculated(some, runs[plain]):
            found[name], against[name] = one, plain
        else:
            left_out.append(name)
    marks = dict(zip(runs, MARKS, strict=False))
    marked = {marks[name]: one for name, one in found.items()}
    used = {marks[name]: most for name, some in runs.items() if configs[name].kv_cache and (most := _used(some[0]))}
    charts = drawn(figures.columns(marked) | {"cache": figures.cache_columns(token_bytes, used)})
    rows = [
        {"name": name, "mark": marks[name], "cells": _cells(one, _measured(name, against[name], runs))}
        for name, one in found.items()
    ]
    missing = f"{NO_WHOLE_ROUND}{listed(left_out)}." if left_out else "" if found else MISSING
    return {"charts": charts, "rows": rows, "missing": missing}


def _used(run: Run) -> tuple[int, int] | None:
    """Tokens and bytes in the run's cache at the step at which it held most."""
    steps = [event for event in run.events if isinstance(event, StepTimed)]
    most = max(steps, key=lambda step: step.kv_used_bytes, default=None)
    return (most.kv_tokens, most.kv_used_bytes) if most else None


def growth(curves: Mapping[str, StepTimes]) -> dict[str, Any]:
    """Both measured curves, their fits, and the fits in words."""
    without, cached = _power(curves[UNCACHED]), _power(curves[CACHED])
    said = f"A token after n others takes, without a cache, {without}; with one, {cached}."
    return {"charts": drawn({"growth": figures.growth_columns(curves)}), "progress": said}


def _power(curve: StepTimes) -> str:
    fit = curve.shown
    if not fit.rises:
        return f"{digits(fit.constant)} ms, with no growth above the scatter"
    if not fit.grows:
        first, last = (digits(fit(length)) for length in (curve.lengths[0], curve.lengths[-1]))
        return f"{first} ms rising to {last}, too unsteadily to tell whether n is why"
    if not EXPONENTS[0] < fit.low <= fit.high < EXPONENTS[-1] or fit.high - fit.low > WIDEST:
        return "longer for longer texts, but too noisy to tell how it grows"
    constant = f"{fit.constant:.2g} + " if fit.constant else ""
    return f"{constant}{fit.factor:.2g} n^{fit.exponent:.2f} ms (power {fit.low:.2f} to {fit.high:.2f}, {LEVEL:.0%})"


def _measured(name: str, plain: str, runs: Mapping[str, Sequence[Run]]) -> tuple[str, str]:
    """A setting's speed-up, and how certain it is, with the setting that it is against."""
    figure, sure = faster(summarise({plain: runs[plain], name: runs[name]})[name])
    return figure, f"{sure} against {plain}"


def _cells(found: Speculated, measured: tuple[str, str]) -> list[list[str]]:
    speedup, sure = measured
    expected = f"theory {times(found.expected_speedup)}, with verify cost {times(found.expected_with_pass)}"
    return [
        [f"{found.acceptance:.3f}", f"{sum(found.accepted)} of {sum(found.verified)} verified"],
        [f"{found.gamma}", f"{found.rounds} of {found.passes} passes"],
        [f"{found.cost:.3f}", ""],
        [times(found.pass_ratio), ""],
        [f"{found.tokens:.2f}", f"theory {found.expected_tokens:.2f}"],
        [speedup, f"{sure}; {expected}"],
    ]
