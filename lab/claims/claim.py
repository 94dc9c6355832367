"""A claim as data: what was said, what tests it here, and the rule that turns the numbers into a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lab.claims.trial import Trial
from lab.measure.interval import Interval, median_interval

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
    "Too noisy to say if the verdict would change with one of the numbers elsewhere in its interval. (The interval: "
    "95%; of a median of fewer than six values, from the least to the most. It is over texts, each measured once, or "
    "over repeats, and then for this text or load only. Of a share it is a bootstrap over texts, because guesses in "
    "one text are alike.)"
)
"""What every rule that rests on measurements adds."""
GAMMA = 5
"""Guesses per round, the number that the articles use where they name one."""
TEXTS = 6
"""Texts of each kind, each measured once: the fewest whose median has a 95% interval. Repeats of one text are alike;
counted as separate samples they would make a figure look more certain than it is (Miller, 2411.00640, on clustered
questions)."""
PLACES = 65
"""Points of an interval at which a rule is tried: the verdict may change in the middle of it."""

STEADIER = "A machine that does nothing else, to check it again on. Where texts differ: more of them."
"""What it takes to say. A check again reads the same texts, so it makes only times more certain."""

Kind = Literal["measured", "formula", "claimed"]
"""Where a number comes from: this machine, just now; a calculation; the article."""

Values = Mapping[str, float]
"""An experiment's numbers by key: all that a rule sees."""


class Number(NamedTuple):
    """One number, unrounded. An infinite one says that there is none.

    ``unit``: "×" is written before the number, any other after it; for "%" the number is a share. ``low``, ``high``:
    the ends of its interval, over repeats or over texts.
    """

    key: str
    label: str
    value: float
    unit: str = ""
    kind: Kind = "measured"
    low: float | None = None
    high: float | None = None

    @classmethod
    def within(cls, key: str, label: str, sure: Interval, unit: str = "") -> Number:
        """A measured number with its interval."""
        return cls(key, label, sure.value, unit, low=sure.low, high=sure.high)

    @classmethod
    def median(cls, key: str, label: str, measured: Sequence[float], unit: str = "") -> Number:
        """The median of a figure measured several times: once in each of several texts, or repeatedly in one."""
        return cls.within(key, label, median_interval(measured), unit)

    @property
    def text(self) -> str:
        """For display, to three digits."""
        return self._written(self.value)

    @property
    def places(self) -> list[float]:
        """Where else in its interval the number may lie."""
        if self.low is None or self.high is None:
            return []
        return [self.low + (self.high - self.low) * i / (PLACES - 1) for i in range(PLACES)]

    @property
    def spread(self) -> str:
        """The interval; empty if there is none."""
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
    """Points under one name. ``x``: numbers in a line chart, names in a bar chart; the same in all its series."""

    name: str
    x: tuple[float, ...] | tuple[str, ...]
    y: tuple[float, ...]
    kind: Kind = "measured"


class Chart(NamedTuple):
    """A small picture of the numbers. ``log``: which axes are logarithmic.

    ``x``, ``y``: labels of the axes. Bars are horizontal, each with its name at the left.
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
    """``why``: the conditions, or what is wrong. ``needs``: what would make the claim true; empty if it is."""

    word: Word
    why: str
    needs: str = ""


class Checked(NamedTuple):
    """A claim after its experiment. ``seconds``: what its measurements took, those made for another claim left out."""

    found: Found
    verdict: Verdict
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of an article.

    Attributes:
        quote: a few of its words. source: the article's title.
        tested: what the statement amounts to, and how that is tested.
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
        before = trial.seconds
        found = self.experiment(trial)
        return Checked(found, self.verdict(found), trial.seconds - before)

    def verdict(self, found: Found) -> Verdict:
        """The rule's verdict, unless a number's interval reaches into another one: then it would be chance."""
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
                    return Verdict("noisy", f"{why} {verdict.why}", STEADIER)
        return verdict


def by_name(values: Values, what: str) -> dict[str, float]:
    """The values whose keys are ``what`` and a name, by that name: a kind of text, or a rung."""
    return {name.removeprefix(f"{what}: "): value for name, value in values.items() if name.startswith(f"{what}: ")}


def at_lengths(values: Values) -> dict[int, float]:
    """The values whose keys are "at_" and a number of tokens, by that number."""
    return {int(key.removeprefix("at_")): value for key, value in values.items() if key.startswith("at_")}


def plain(value: float) -> str:
    """Three digits, thousands separated, no power of ten unless needed."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def times(ratio: float) -> str:
    return f"×{plain(ratio)}"


def percent(share: float) -> str:
    return "no percentage" if math.isinf(share) else f"{100 * share:.3g}%".replace("-", "−")
