"""The next step's pass, launched before the host has read this step's result.

Between two steps of plain decoding a GPU waits for the host: it reads the token, looks whether the text ends there,
records what happened, and launches the next step. But all that the next pass needs is there before: the token on the
device, and its slot, which follows the last one's. So that pass is launched at once, and the host does its work while
it runs (vLLM calls this asynchronous scheduling). For a sequence that turns out to have ended, it was in vain: what it
stored lies in a slot that nobody reads before it is written again, since a device does everything in order.

Only captured steps are launched ahead. Launching others takes the host as long as the GPU needs for them, and capturing
one now would delay the tokens that are about to be read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Several
from dataclasses import dataclass, field

import torch

from lab.decode.clock import StepClock
from lab.decode.forward import NewTokens, forward, is_captured
from lab.decode.scheduler import Turn
from lab.decode.sequence import Sequence
from lab.kv.storage import KVStorage
from lab.pair.models import LanguageModel

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Ahead:
    """A pass that has been launched.

    Attributes:
        lengths: of each of its sequences, the tokens that it will have when the pass is its turn.
        logits: [sequences, vocabulary] float32.
        clock: times the pass.
        since: when the step before ended, by ``time.perf_counter``.
    """

    lengths: dict[Sequence, int]
    logits: torch.Tensor
    clock: StepClock
    since: float = field(default_factory=time.perf_counter)

    def logits_of(self, turns: list[Turn]) -> torch.Tensor | None:
        """[turns, vocabulary]; None if it is not what all of these turns are to compute."""
        places = {sequence: place for place, sequence in enumerate(self.lengths)}
        for turn in turns:
            sequence = turn.sequence
            if (turn.count, turn.window) != (1, 0) or self.lengths.get(sequence) != len(sequence.tokens):
                return None
        rows = [places[turn.sequence] for turn in turns]
        return self.logits if rows == list(range(len(places))) else torch.stack([self.logits[row] for row in rows])


def launch_ahead(
    model: LanguageModel, storage: KVStorage, sequences: Several[Sequence], own: torch.Tensor
) -> Ahead | None:
    """Launch the pass over the tokens that ``sequences`` are about to get. None: it cannot be done ahead.

    Args:
        own: [sequences] int64, those tokens, on the device.
    """
    if not all(map(_can_go_on, sequences)):
        return None
    batch = [
        NewTokens(token, len(sequence.tokens), sequence.table, keep=1)
        for token, sequence in zip(own.split(1), sequences, strict=True)
    ]
    if not is_captured(model, batch, storage):
        return None
    try:
        clock = StepClock(model.device)
        logits = forward(model, batch, storage)
        clock.mark("verify")
    except Exception:  # the step itself will fail likewise, and say so
        log.warning("a step could not be launched ahead", exc_info=True)
        return None
    return Ahead({sequence: len(sequence.tokens) + 1 for sequence in sequences}, logits, clock)


def _can_go_on(sequence: Sequence) -> bool:
    """Whether there is a slot for one more token, which will not be the last, and nothing to propose after it."""
    known = len(sequence.tokens)
    room = sequence.table is not None and sequence.table.capacity > known
    return room and known + 1 < sequence.end and sequence.drafter is None
