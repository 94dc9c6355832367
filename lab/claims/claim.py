"""A claim as data: what was said, what tests it here, and the rule by which the numbers decide."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lab.claims.trial import Trial

NEWSLETTER = "KV Caching and Speculative Decoding"
TUTORIAL = "Mastering KV Cache Compression and Speculative Decoding: Accelerate Your LLM Inference by 3x"
COURSE = "LLM Inference: KV Cache, Speculative Decoding & Batching"
"""The articles, by their titles."""

Word = Literal["holds", "conditions", "fails"]
WORDS: dict[Word, str] = {"holds": "holds here", "conditions": "holds under conditions", "fails": "does not hold"}

Kind = Literal["measured", "formula", "claimed"]
"""Where a number is from: this machine, just now; a calculation; the article."""

Values = Mapping[str, float]
"""An experiment's numbers by their keys: all that a rule sees."""


class Number(NamedTuple):
    """One number as it came. An infinite one says that there is none.

    ``unit``: "×" stands before the number, "%" has the number as a share, any other stands after it.
    """

    key: str
    label: str
    value: float
    unit: str = ""
    kind: Kind = "measured"

    @property
    def text(self) -> str:
        """For people, to three digits."""
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        if math.isinf(self.value):
            return "none"
        if self.unit == "%":
            return percent(self.value)
        if self.unit == "×":
            return times(self.value)
        return f"{plain(self.value)} {self.unit}".strip()


class Series(NamedTuple):
    """Points of one name. ``x``: numbers in a chart of lines, names in one of bars, the same in all its series."""

    name: str
    x: tuple[float, ...] | tuple[str, ...]
    y: tuple[float, ...]
    kind: Kind = "measured"


class Chart(NamedTuple):
    """A small picture of the numbers. ``log``: which axes are logarithmic.

    ``x``, ``y``: what is on the axes. Bars lie on their side, each with its name at the left.
    """

    form: Literal["lines", "bars"]
    x: str
    y: str
    series: tuple[Series, ...]
    log: str = ""


class Found(NamedTuple):
    """What an experiment gives."""

    numbers: tuple[Number, ...]
    chart: Chart | None = None

    @property
    def values(self) -> Values:
        return {number.key: number.value for number in self.numbers}


class Verdict(NamedTuple):
    """``why``: the conditions, or what is wrong. ``needs``: what would make it true; empty where it is."""

    word: Word
    why: str
    needs: str = ""


class Checked(NamedTuple):
    """A claim after its experiment."""

    found: Found
    verdict: Verdict
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of an article.

    Attributes:
        quote: a few of its words. source: the article's title.
        tested: what the statement comes to, and what is done to find out.
        rule: ``judge`` in words.
        arithmetic: the experiment is a calculation: it loads no model and takes milliseconds.
    """

    id: str
    topic: str
    quote: str
    source: str
    tested: str
    rule: str
    experiment: Callable[[Trial], Found]
    judge: Callable[[Values], Verdict]
    arithmetic: bool = False

    def check(self, trial: Trial) -> Checked:
        """Do the experiment and apply the rule.

        Raises:
            Stopped: the trial was cancelled.
            LabError: the experiment cannot be done with this engine.
        """
        began = time.perf_counter()
        found = self.experiment(trial)
        return Checked(found, self.judge(found.values), time.perf_counter() - began)


def at_lengths(values: Values) -> dict[int, float]:
    """The values whose keys are "at_" and a number of tokens, by that number."""
    return {int(key.removeprefix("at_")): value for key, value in values.items() if key.startswith("at_")}


def plain(value: float) -> str:
    """Three digits, thousands apart, no power of ten where there need be none."""
    if value == 0 or abs(value) < 1e-3:
        return f"{value:.2g}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def times(ratio: float) -> str:
    return f"×{plain(ratio)}"


def percent(share: float) -> str:
    return "no percentage" if math.isinf(share) else f"{100 * share:.3g}%".replace("-", "−")
