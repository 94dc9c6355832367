"""``growth``: how long a token takes as the text grows, with a cache and without."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from lab.bench.growth import CACHED, TOGETHER, UNCACHED, Curve, measure_growth
from lab.bench.power import FEWEST
from lessons.experiments.base import Experiment, Load, Measured, Watch, Work
from lessons.line import fit_line

NAMES = {"cached": CACHED, "uncached": UNCACHED}
FIGURES = {
    "lengths": "tokens that a step had read when it was over, one for every step",
    "ms": "milliseconds of each step",
    "slope_ms": "of the line through them (medians of ten): milliseconds that a token more adds",
    "slope_error_ms": "its standard error",
    "intercept_ms": "where the line begins",
    "first_ms": "median of the first ten steps",
    "last_ms": "median of the last ten",
    "total_ms": "all steps together",
}


class Growth(Experiment):
    """One prompt, decoded greedily for so many tokens, with a cache and then without."""

    prompt: str = Field(min_length=1)
    tokens: int = Field(ge=FEWEST * TOGETHER + 1, le=600)

    def names(self) -> Mapping[str, Any]:
        return dict.fromkeys(NAMES, dict.fromkeys(FIGURES))

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        def tell(name: str, tokens: int) -> None:
            words = name if name == CACHED else f"{name} a cache"
            watch(f"{words}: {tokens} of {self.tokens} tokens", share(name, tokens / self.tokens))

        yield
        curves = measure_growth(load("matched"), self.prompt, self.tokens, cancelled=cancelled, watch=tell)
        return Measured({own: figures(curves[name]) for own, name in NAMES.items()} if curves else {})


def share(name: str, done: float) -> float:
    """Of the time: with a cache it is over in no time, without one its square counts."""
    return 0.05 * done if name == CACHED else 0.05 + 0.95 * done**2


def figures(curve: Curve) -> dict[str, Any]:
    """Those of one curve."""
    lengths, medians = curve.medians
    fit = fit_line(lengths, medians)
    return {
        "lengths": list(curve.lengths),
        "ms": list(curve.ms),
        "slope_ms": fit.slope,
        "slope_error_ms": fit.error,
        "intercept_ms": fit.intercept,
        "first_ms": medians[0],
        "last_ms": medians[-1],
        "total_ms": sum(curve.ms),
    }
