"""What drafters did in several runs, counted together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lab.trace.events import Judged, Proposed
from lab.trace.run import Run


@dataclass(frozen=True)
class AcceptanceStats:
    """What drafters did: rounds that had proposals, those proposals, and the accepted ones among them."""

    rounds: int
    proposed: int
    accepted: int

    @property
    def acceptance(self) -> float | None:
        """``Metrics.draft_acceptance_rate`` over all of them. None: nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """``Metrics.mean_acceptance_length`` over all of them. None: there was no round."""
        return 1 + self.accepted / self.rounds if self.rounds else None


def acceptance_stats(runs: Iterable[Run]) -> AcceptanceStats:
    """The guesses of all ``runs`` together: a run without proposals says nothing about how often they are right."""
    rounds = proposed = accepted = 0
    for run in runs:
        proposals = [event for event in run.events if isinstance(event, Proposed)]
        rounds += len({event.step for event in proposals})
        proposed += len(proposals)
        accepted += sum(isinstance(event, Judged) and event.accepted for event in run.events)
    return AcceptanceStats(rounds, proposed, accepted)
