"""One step of the engine, gathered from its events: its tokens, and its column in the chart of rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lab.trace.events import (
    BlockEvicted,
    Bonus,
    CacheDropped,
    Committed,
    Distributions,
    Event,
    FellBack,
    Judged,
    Proposed,
    Recovered,
    WindowChanged,
)
from lab.trace.verdict_rounding import round_verdict, significant
from visualize.charts import rounds_chart as rounds
from visualize.reduce.verification_view import opened
from visualize.text import visible

OF_A_VERDICT = ("p", "q", "u", "chance")
"""Numbers that a token's sentence may name (``vocabulary.sentences``)."""


@dataclass
class Step:
    """The events of one step, sorted by kind."""

    proposals: list[Proposed] = field(default_factory=list)
    verdicts: dict[int, Judged] = field(default_factory=dict)
    around: dict[int, Distributions] = field(default_factory=dict)
    own: Recovered | Bonus | None = None
    committed: Committed | None = None
    rare: list[FellBack | CacheDropped | WindowChanged | BlockEvicted] = field(default_factory=list)

    def add(self, event: Event) -> None:
        match event:
            case Proposed():
                self.proposals.append(event)
            case Judged():
                self.verdicts[event.position] = event
            case Distributions():
                self.around[event.position] = event
            case Recovered() | Bonus():
                self.own = event
            case Committed():
                self.committed = event
            case FellBack() | CacheDropped() | WindowChanged() | BlockEvicted():
                self.rare.append(event)

    def tokens(self) -> list[dict[str, Any]]:
        """The committed tokens, each with the verdict behind it and what was thrown away for it."""
        if self.committed is None:
            return []
        commit = self.committed
        tokens = []
        for position, (origin, piece, p) in enumerate(
            zip(commit.origins, commit.pieces, commit.probabilities, strict=True)
        ):
            token: dict[str, Any] = {"text": visible(piece), "origin": origin, "p": significant(p)}
            if origin == "accepted":
                token |= _numbers(self.verdicts[position], *OF_A_VERDICT)
            elif origin == "recovered":
                token["rejected"] = [self._rejected(guess) for guess in self.proposals[position:]]
            tokens.append(token)
        return tokens

    def squares(self, step: int, speculative: str) -> list[Any]:
        """The step's column in the chart of rounds."""
        names = ("p", "u") if speculative == "synthetic" else ("p", "q", "u")  # it has no q
        points = []
        for guess in self.proposals:
            verdict = self.verdicts.get(guess.position)
            state = "unjudged" if verdict is None else "accepted" if verdict.accepted else "rejected"
            numbers = _numbers(verdict or guess, *names)
            points.append(rounds.point(step, guess.position + 1, state, guess.text, numbers))
        if self.own is not None:
            points.append(rounds.point(step, 0, self.own.kind, self.own.text, _numbers(self.own, "p")))
        elif self.committed is not None and not self.proposals:
            p = {"p": significant(self.committed.probabilities[0])}
            points.append(rounds.point(step, 0, "plain", self.committed.pieces[0], p))
        return points

    def opened(self, speculative: str) -> list[dict[str, Any]]:
        """The step's verdicts by position, with their distributions; none if those were not recorded."""
        return [
            opened(self.proposals[position], self.verdicts[position], around, self.own, speculative)
            for position, around in self.around.items()
        ]

    def _rejected(self, guess: Proposed) -> dict[str, Any]:
        return {"text": visible(guess.text)} | _numbers(self.verdicts.get(guess.position) or guess, *OF_A_VERDICT)


def _numbers(event: Judged | Proposed | Recovered | Bonus, *names: str) -> dict[str, float]:
    """Those of ``names`` (of p, q, u and the chance of being kept) that the event has, rounded as they are printed."""
    if isinstance(event, Judged) and event.u is not None:
        drawn = round_verdict(event.p, event.q, event.u, accepted=event.accepted)
        return {name: getattr(drawn, name) for name in names}
    values = {name: getattr(event, name, None) for name in names}
    return {name: significant(value) for name, value in values.items() if value is not None}
