"""What theory has to say of a comparison, and how times grow with the text, as JSON for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.bench.growth import CACHED, UNCACHED, Curve
from lab.bench.theory import Speculated, speculated, without_speculation
from lab.config import EngineConfig
from lab.trace.recorder import Run
from visualize.figures import theory as figures
from visualize.figures.compare import MARKS, times

GROWTH_TOKENS = 200
"""Without a cache the last of them takes a few dozen times what it takes with one."""
COLUMNS = (
    ("a", "Accepted of judged proposals, in rounds of a full window."),
    ("γ", "Tokens guessed a round."),
    ("c", "Time of a guess over that of a pass of the target over one token, medians of the runs' own times."),
    ("wide pass", "Time of a pass over γ + 1 tokens over that over one. Theory takes it to be 1."),
    ("tokens a round", "Measured, and in small by theory: (1 − aᵞ⁺¹) / (1 − a)."),
    (
        "speed-up",
        "Measured, and in small by theory: (1 − aᵞ⁺¹) / ((1 − a)(1 + γc)); then with the wide pass for the 1.",
    ),
)
MISSING = (
    "Compare a setting with speculation and a fixed window to one without it, both with the same cache, and both stand "
    "on these curves."
)


def theory(configs: Mapping[str, EngineConfig], runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """The curves, and on them the settings that speculate; a sentence where there are none."""
    found: dict[str, Speculated] = {}
    for name, some in runs.items():
        plain = without_speculation(name, configs)
        if plain is not None and (one := speculated(some, runs[plain])):
            found[name] = one
    marks = dict(zip(runs, MARKS, strict=False))
    marked = {marks[name]: one for name, one in found.items()}
    charts = {
        name: {"columns": columns, "layout": layout} for name, (columns, layout) in figures.columns(marked).items()
    }
    rows = [{"name": name, "mark": marks[name], "cells": _cells(one)} for name, one in found.items()]
    return {"charts": charts, "rows": rows, "missing": "" if found else MISSING}


def growth(curves: Mapping[str, Curve]) -> dict[str, Any]:
    """Both curves, their lines, and the lines in words."""
    columns, layout = figures.growth_columns(curves)
    said = (
        f"A hundred tokens more make a token take {_slope(curves[UNCACHED])} ms longer without a cache, "
        f"{_slope(curves[CACHED])} ms with one "
        "(least squares through medians of ten, ± the standard error; greedy)."
    )
    return {"charts": {"growth": {"columns": columns, "layout": layout}}, "progress": said}


def _slope(curve: Curve) -> str:
    return f"{100 * curve.fit.slope:.2f} ± {100 * curve.fit.error:.2f}".replace("-", "−")


def _cells(found: Speculated) -> list[list[str]]:
    faster = found.speedup
    return [
        [f"{found.acceptance:.3f}", f"{sum(found.accepted)} of {sum(found.judged)}"],
        [f"{found.gamma}", ""],
        [f"{found.cost:.3f}", ""],
        [times(found.pass_ratio), ""],
        [f"{found.tokens:.2f}", f"theory {found.expected_tokens:.2f}"],
        [
            times(faster.median),
            f"theory {times(found.expected_speedup)}, with the wide pass {times(found.expected_with_pass)}",
        ],
    ]
