"""``growth``: how long a token takes as the text grows, with a cache and without."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field

from lab.measure.scaling_fit import (
    CACHED,
    MIN_POINTS,
    TOGETHER,
    UNCACHED,
    StepTimes,
    fit_power,
    growth_share,
    measure_growth,
)
from lessons.experiments.base import Experiment, Load, Measured, Watch, Work

NAMES = {"cached": CACHED, "uncached": UNCACHED}
FIGURES = {
    "lengths": "tokens that a step had read when it was over, one for every step",
    "ms": "milliseconds of each step",
    "exponent": "k of the curve constant + factor * length^k through medians of ten",
    "exponent_low": "lower end of its 95% interval",
    "exponent_high": "upper end",
    "grows": "1 if the times clearly grow above their scatter, else 0, and the exponent means nothing",
    "first_ms": "median of the first ten steps",
    "last_ms": "median of the last ten",
    "total_ms": "all steps together",
}


class Growth(Experiment):
    """One prompt, decoded greedily for ``tokens`` tokens, with a cache and then without."""

    timed = True

    prompt: str = Field(min_length=1)
    tokens: int = Field(ge=MIN_POINTS * TOGETHER + 1, le=600)

    def names(self) -> Mapping[str, Any]:
        return dict.fromkeys(NAMES, dict.fromkeys(FIGURES))

    @classmethod
    def by_repeat(cls, found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Measured only once: instead of the times, the flattest curves that fit nearly as well, then the steepest."""
        return [
            {own: {**one, "ms": fitted(one, one[end])} for own, one in found.items()}
            for end in ("exponent_low", "exponent_high")
        ]

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        def report(name: str, tokens: int) -> None:
            words = name if name == CACHED else f"{name} a cache"
            watch(f"{words}: {tokens} of {self.tokens} tokens", growth_share(name, tokens / self.tokens))

        yield
        curves = measure_growth(load("matched"), self.prompt, self.tokens, cancelled=cancelled, watch=report)
        return Measured({own: figures(curves[name]) for own, name in NAMES.items()} if curves else {})


def fitted(one: Mapping[str, Any], exponent: float) -> list[float]:
    """The time of each step by a curve with this exponent through these figures. Raises ValueError."""
    curve = StepTimes(tuple(one["lengths"]), tuple(one["ms"]))
    fit = fit_power(*curve.medians, np.array([exponent]))
    return [fit(length) for length in curve.lengths]


def figures(curve: StepTimes) -> dict[str, Any]:
    """The figures of one curve."""
    fit, (_, medians) = curve.fit, curve.medians
    return {
        "lengths": list(curve.lengths),
        "ms": list(curve.ms),
        "exponent": fit.exponent,
        "exponent_low": fit.low,
        "exponent_high": fit.high,
        "grows": int(fit.grows),
        "first_ms": medians[0],
        "last_ms": medians[-1],
        "total_ms": sum(curve.ms),
    }
