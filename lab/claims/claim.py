"""A claim as data: a statement, its source, what is measured here, and the rule that gives the verdict."""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

from lab.claims.rule import ClaimResult, Rule, Value, Word
from lab.claims.trial import Trial
from lab.measure.interval import Interval
from lab.util.messages import listed

WORDS: dict[Word, str] = {
    "holds": "holds here",
    "part": "holds for part of it",
    "conditions": "it depends",
    "fails": "does not hold",
    "cause": "real number, another cause",
    "untested": "cannot be tested here",
    "noisy": "too noisy to say",
}
DRAWS, AGREED = 400, 0.95
NOISE = (
    "“Too noisy” means that the verdict could flip within the measurement error: all numbers together are drawn "
    f"{DRAWS} times from within their intervals, and fewer than {AGREED:.0%} of them agree. (Intervals are of "
    "95%; of a median of fewer than six values, from the least to the most. They are over texts, each measured once, "
    "or over repeats of one text or load. For a share, texts are resampled: draft tokens in one text are alike.)"
)
"""Added to every rule that rests on measurements."""
STEADIER = "To settle this: measure again on an idle machine, or with more texts where texts differ."
"""The need of a noisy verdict. A check again reads the same texts, so it makes only times more certain."""

Kind = Literal["measured", "formula", "claimed", "recorded", "published"]
"""The origin of a number: this machine, just now; a calculation; the article; the lab's record of another machine; a
paper."""


class Number(NamedTuple):
    """One number, unrounded. An infinite one says that there is none.

    ``unit``: "×" and "%" are written right after the number, which for "%" is a share; any other after a space.
    ``low``, ``high``: the ends of its interval, over repeats or over texts.
    """

    key: str
    label: str
    value: float
    unit: str = ""
    kind: Kind = "measured"
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """For display, to three digits."""
        return self._written(self.value)

    @property
    def uncertain(self) -> bool:
        return self.low is not None and self.high is not None

    def drawn(self, random: Random) -> float:
        """A number that it may as well be: normally distributed on either side, so that its interval has 95%."""
        z = random.gauss() / 1.96
        end = self.high if z > 0 else self.low
        if min(self.low, self.value) > 0 and not math.isinf(end):  # by factors: no time is negative
            return self.value * (end / self.value) ** abs(z)
        return self.value + abs(z) * (end - self.value)

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
        return f"{Value(value):{self.unit}}" if self.unit in ("%", "×") else f"{Value(value)} {self.unit}".strip()


class Series(NamedTuple):
    """Points under one name. ``x``: numbers in a line chart, names in a bar chart; the same in all its series."""

    name: str
    x: tuple[float, ...] | tuple[str, ...]
    y: tuple[float, ...]
    kind: Kind = "measured"


class ClaimChart(NamedTuple):
    """A small picture of the numbers. ``log``: which axes are logarithmic.

    ``x``, ``y``: labels of the axes. Bars are horizontal, each with its name at the left.
    """

    form: Literal["lines", "bars"]
    x: str
    y: str
    series: tuple[Series, ...]
    log: str = ""


class Figures(NamedTuple):
    """The outcome of an experiment: values by key, some with their interval. ``words``: what their labels name."""

    values: Mapping[str, float | Interval]
    chart: ClaimChart | None = None
    words: Mapping[str, object] = {}


class Findings(NamedTuple):
    """The numbers of a claim."""

    numbers: tuple[Number, ...]
    chart: ClaimChart | None = None

    @property
    def values(self) -> dict[str, float]:
        return {number.key: number.value for number in self.numbers}


class Checked(NamedTuple):
    """A claim after its experiment. ``seconds``: what its measurements took, those made for another claim left out."""

    found: Findings
    verdict: ClaimResult
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of an article.

    Attributes:
        says: the statement in our words. source: the article's title.
        tested: what the statement amounts to, and how that is tested. rule: the rule in words.
        numbers: label, unit and kind of the experiment's values, by key; a key that ends in "*" is that of several
            values, whose labels have the rest of their keys at "{}".
        arithmetic: the experiment is a calculation: it loads no model and takes milliseconds.
    """

    id: str
    topic: str
    says: str
    source: str
    tested: str
    rule: str
    numbers: Mapping[str, tuple[str, str, Kind]]
    experiment: Callable[[Trial], Figures]
    decide: Rule
    arithmetic: bool = False

    def check(self, trial: Trial) -> Checked:
        """Do the experiment and apply the rule. Raises Stopped: the trial was cancelled; LabError: the experiment
        cannot be done with this engine."""
        before = trial.seconds
        found = self.find(trial)
        return Checked(found, self.verdict(found), trial.seconds - before)

    def find(self, trial: Trial) -> Findings:
        """The experiment's values with their labels and units."""
        values, chart, words = self.experiment(trial)
        return Findings(tuple(self._number(key, value, words) for key, value in values.items()), chart)

    def _number(self, key: str, value: float | Interval, words: Mapping[str, object]) -> Number:
        start, rest = (key, "") if key in self.numbers else re.match(r"(at_|\w+_(?=\d+$)|[^:]+: )(.*)", key).groups()
        label, unit, kind = self.numbers[key if key in self.numbers else f"{start}*"]
        label = label.format(rest, **words)
        if isinstance(value, Interval):
            return Number(key, label, value.value, unit, kind, value.low, value.high)
        return Number(key, label, value, unit, kind)

    def verdict(self, found: Findings) -> ClaimResult:
        """The rule's verdict, unless it would be chance: all uncertain numbers are drawn anew together."""
        verdict, random = self.decide(found.values), Random(0)
        uncertain = [number for number in found.numbers if number.uncertain]
        if not uncertain:
            return verdict
        draws = ({number.key: number.drawn(random) for number in uncertain} for _ in range(DRAWS))
        words = Counter(self.decide.word(found.values | draw) for draw in draws)
        if words[verdict.word] >= AGREED * DRAWS:
            return verdict
        shares = [f"“{WORDS[word]}” in {count / DRAWS:.0%}" for word, count in words.most_common()]
        return ClaimResult("noisy", f"Within the measurement error: {listed(shares)} of cases. {verdict.why}", STEADIER)
