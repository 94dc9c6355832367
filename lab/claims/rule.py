"""Rules as data: expressions over a claim's numbers that decide its verdict, and templates that put it into words.

The expressions are Python's, from ``claims.toml``, a file of this package. They see the numbers by their keys, the
numbers whose keys begin alike as a ``ValueGroup``, the rule's own groups and names, and ``FUNCTIONS``.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import CodeType
from typing import Any, Literal, NamedTuple

from lab.util.messages import listed

Word = Literal["holds", "part", "conditions", "fails", "cause", "untested", "noisy"]


class ClaimResult(NamedTuple):
    """A verdict. ``why``: the conditions, or the fault. ``needs``: what would make the claim true; empty if it is."""

    word: Word
    why: str
    needs: str = ""


class Value(float):
    """A number as a sentence gives it: ``{x}`` to three digits, ``{x:×}`` as a factor, ``{x:%}`` as a share."""

    def __format__(self, spec: str) -> str:
        if spec == "×":
            return f"{self}×"
        if spec == "%":
            return "no percentage" if math.isinf(self) else f"{100 * float(self):.3g}%".replace("-", "−")
        return float.__format__(self, spec or (",.0f" if abs(self) >= 100 else ".3g"))


class ValueGroup(dict[Any, Value]):
    """Values by name: a kind of text, a rung, or a number of tokens; and the range that they are asked to be in."""

    least, most = -math.inf, math.inf

    @property
    def met(self) -> list[Any]:
        """Names of the values in the range."""
        return [name for name, value in self.items() if self.least <= value <= self.most]

    all = property(lambda self: len(self.met) == len(self))
    any = property(lambda self: bool(self.met))
    met_names = property(lambda self: listed(list(map(str, self.met))) if self.met else "")
    low = property(lambda self: min(self.values()))
    high = property(lambda self: max(self.values()))
    best = property(lambda self: max(self, key=self.__getitem__))
    first = property(lambda self: next(iter(self)))
    last = property(lambda self: next(reversed(self)))
    start = property(lambda self: self[self.first])
    end = property(lambda self: self[self.last])
    shown = property(lambda self: ", ".join(f"{value}" for value in self.values()))
    by_length = property(lambda self: ", ".join(f"{value:×} after {name}" for name, value in self.items()))

    @property
    def settled(self) -> Any:
        """The first name from which on all values are in the range."""
        kept = list(itertools.takewhile(set(self.met).__contains__, reversed(self)))
        return kept[-1] if kept else None


def near(ratio: float, factor: float = 3.0) -> bool:
    """Of the same order."""
    return 1 / factor <= ratio <= factor


def alike(a: float, b: float) -> bool:
    """Equal as they are shown."""
    return f"{Value(a)}" == f"{Value(b)}"


FUNCTIONS = {"near": near, "alike": alike, "abs": abs, "len": len, "max": max, "min": min}


@cache
def _code(expression: str) -> CodeType:
    return compile(expression, "claims.toml", "eval")


def evaluate(expression: str | float, names: Mapping[str, Any]) -> Any:
    """An expression of the data; a number is one already."""
    if not isinstance(expression, str):
        return expression
    found = eval(_code(expression), {"__builtins__": {}}, names)
    return Value(found) if type(found) in (int, float) else found


@dataclass(frozen=True)
class Rule:
    """The verdict that follows from the numbers: the first of ``holds`` and ``depends`` that is true, else "fails".

    Attributes:
        why: a template for every verdict, or one for all. needs: for those that are not "holds".
        groups: by name, the values that begin with ``of`` and a colon: ``without`` a name, names ``upto`` a number,
            divided ``over`` another group's, in the order ``by`` another group's, asked to be ``least`` to ``most``.
        let: names for expressions, in order.
        called: verdicts that have another word here: "part" of it holds where it depends on nothing; "cause" if the
            number is real and its cause another; "untested" where no machine of a learner could tell.
        words: by name, pairs of a condition and a template, of which the first that is true counts; "": always.
    """

    holds: str
    why: str | Mapping[str, str]
    needs: str
    depends: str = "False"
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    let: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, list[list[str]]] = field(default_factory=dict)
    called: Mapping[str, Word] = field(default_factory=dict)

    def word(self, values: Mapping[str, float]) -> Word:
        return self._called(self._word(self._names(values)))

    def _called(self, word: Word) -> Word:
        return self.called.get(word, word)

    def __call__(self, values: Mapping[str, float]) -> ClaimResult:
        names = self._names(values)
        word = self._word(names)
        for name, options in self.words.items():
            template = next((text for test, text in options if not test or evaluate(test, names)), "")
            names[name] = template.format_map(names)
        why = self.why if isinstance(self.why, str) else self.why[word]
        return ClaimResult(
            self._called(word), why.format_map(names), "" if word == "holds" else self.needs.format_map(names)
        )

    def _word(self, names: Mapping[str, Any]) -> Word:
        return "holds" if evaluate(self.holds, names) else "conditions" if evaluate(self.depends, names) else "fails"

    def _names(self, values: Mapping[str, float]) -> dict[str, Any]:
        names: dict[str, Any] = dict(FUNCTIONS)
        for key, value in values.items():
            names[key] = Value(value)
            start, colon, rest = key.partition(": ")
            if colon:
                names.setdefault(start, ValueGroup())[rest] = Value(value)
            elif key.startswith("at_"):
                names.setdefault("at", ValueGroup())[int(key.removeprefix("at_"))] = Value(value)
        for name, options in self.groups.items():
            names[name] = self._group(names, **options)
        for name, expression in self.let.items():
            names[name] = evaluate(expression, names)
        return names

    def _group(
        self,
        names: Mapping[str, Any],
        of: str,
        without: str = "",
        upto: int | None = None,
        over: str = "",
        by: str = "",
        least: str | float = -math.inf,
        most: str | float = math.inf,
    ) -> ValueGroup:
        found = {name: value for name, value in names[of].items() if name != without}
        if upto is not None:
            found = {name: value for name, value in found.items() if name <= upto}
        if over:
            found = {name: Value(value / names[over][name]) for name, value in found.items()}
        group = ValueGroup((name, found[name]) for name in (sorted(found, key=names[by].get) if by else found))
        group.least, group.most = evaluate(least, names), evaluate(most, names)
        return group
