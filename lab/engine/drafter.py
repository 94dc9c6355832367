"""The interface of drafters."""

from __future__ import annotations

from abc import ABC, abstractmethod

from lab.backends.interface import DraftTokens
from lab.engine.adaptive_window import TheilSen
from lab.engine.pass_cost import ExpertsRead
from lab.engine.sequence import Sequence
from lab.trace.roofline import PassCost


class Drafter(ABC):
    """Proposes tokens for all of its sequences in a step at once.

    Anything its methods raise is caught: its sequences then go on without a drafter.

    Attributes:
        times: milliseconds that a step's drafting took, by the most tokens drafted for one sequence.
    """

    def __init__(self) -> None:
        self.times = TheilSen()

    @abstractmethod
    def propose(self, sequences: list[Sequence], windows: list[int]) -> list[DraftTokens | None]:
        """Draft at most ``windows[i]`` tokens to follow ``sequences[i]``; None where there is nothing to propose."""

    def cost(self, sequences: list[Sequence], windows: list[int]) -> PassCost:
        """The bytes and FLOPs that ``propose`` is about to take, over all of its model's passes."""
        return PassCost()

    def experts_read(self) -> list[ExpertsRead]:
        """Experts read since the last call, where its model is a mixture."""
        return []

    def is_behind(self, sequences: list[Sequence]) -> bool:
        """True if ``propose`` is about to read more than in a usual round, because a text grew without it."""
        return False

    def read(self, sequences: list[Sequence], stops: list[int]) -> PassCost:
        """Read the first ``stops[i]`` tokens of ``sequences[i]``, as far as the target got in this step: so a prompt
        comes in chunks here too. Called when the target has computed them. Returns what that took."""
        return PassCost()
