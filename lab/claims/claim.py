"""A claim as data: what was said, what tests it here, and the rule by which the numbers decide."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lab.bench.interval import median_interval
from lab.claims.trial import Trial

NEWSLETTER = "KV Caching and Speculative Decoding"
TUTORIAL = "Mastering KV Cache Compression and Speculative Decoding: Accelerate Your LLM Inference by 3x"
COURSE = "LLM Inference: KV Cache, Speculative Decoding & Batching"
"""The articles, by their titles."""

Word = Literal["holds", "conditions", "fails", "noisy"]
WORDS: dict[Word, str] = {
    "holds": "holds here",
    "conditions": "holds under conditions",
    "fails": "does not hold",
    "noisy": "too noisy to say",
}
NOISE = (
    "Too noisy to say if the verdict would change with one of the numbers elsewhere in its interval. (The interval "
    "of a median: 95%, or from the least to the most where there are fewer than six values. It is over texts, each "
    "measured once, or over repeats, and then for this text or load only.)"
)
"""What every rule that rests on times says besides."""
GAMMA = 5
"""Guesses a round, as the articles have it where they name a number."""
TEXTS = 6
"""Each measured once, where a figure is one of a kind of text: the fewest whose median has a 95% interval. Repeats of a
text are alike. Counted as samples of their own they would make the figure look surer than it is (Miller, 2411.00640, on
clustered questions)."""
PLACES = 65
"""At which an interval is tried: a rule may ask for what lies in the middle of it."""

Kind = Literal["measured", "formula", "claimed"]
"""Where a number is from: this machine, just now; a calculation; the article."""

Values = Mapping[str, float]
"""An experiment's numbers by their keys: all that a rule sees."""


class Number(NamedTuple):
    """One number as it came. An infinite one says that there is none.

    ``unit``: "×" stands before the number, "%" has the number as a share, any other stands after it. ``low``, ``high``:
    of repeated times, or of those of several texts, between which the number lies.
    """

    key: str
    label: str
    value: float
    unit: str = ""
    kind: Kind = "measured"
    low: float | None = None
    high: float | None = None

    @classmethod
    def median(cls, key: str, label: str, measured: Sequence[float], unit: str = "") -> Number:
        """Of a figure that was measured several times: once in each of several texts, or over and over in one."""
        sure = median_interval(measured)
        return cls(key, label, sure.value, unit, low=sure.low, high=sure.high)

    @property
    def text(self) -> str:
        """For people, to three digits."""
        return self._written(self.value)

    @property
    def places(self) -> list[float]:
        """Where else in its interval the number may be."""
        if self.low is None or self.high is None:
            return []
        return [self.low + (self.high - self.low) * i / (PLACES - 1) for i in range(PLACES)]

    @property
    def spread(self) -> str:
        """The interval; empty where there is none."""
        ends = (self.low, self.high)
        return "" if None in ends else " to ".join(map(self._written, ends))

    def _written(self, value: float) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        if math.isinf(value):
            return "none"
        if self.unit == "%":
            return percent(value)
        if self.unit == "×":
            return times(value)
        return f"{plain(value)} {self.unit}".strip()


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
        return Checked(found, self.verdict(found), time.perf_counter() - began)

    def verdict(self, found: Found) -> Verdict:
        """The rule's, unless a number's interval reaches over to another: then it would be chance."""
        verdict = self.judge(found.values)
        for number in found.numbers:
            for place in number.places:
                other = self.judge({**found.values, number.key: place})
                if other.word != verdict.word:
                    words = f"“{WORDS[verdict.word]}” or “{WORDS[other.word]}”"
                    why = (
                        f"{words}: {number.label} came out as {number.text}, and anything from {number.spread} fits "
                        "nearly as well."
                    )
                    return Verdict(
                        "noisy", f"{why} {verdict.why}", "A machine that does nothing else, or more repeats."
                    )
        return verdict


def of(values: Values, what: str) -> dict[str, float]:
    """The values whose keys are ``what`` and a name, by that name: of every kind of text, of every rung."""
    return {name.removeprefix(f"{what}: "): value for name, value in values.items() if name.startswith(f"{what}: ")}


def at_lengths(values: Values) -> dict[int, float]:
    """The values whose keys are "at_" and a number of tokens, by that number."""
    return {int(key.removeprefix("at_")): value for key, value in values.items() if key.startswith("at_")}


def listed(words: Sequence[str]) -> str:
    """One or more: with commas, and an "and" before the last."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


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
