"""The next step's pass, launched before the host has read this step's result.

Between two steps of plain decoding a GPU waits for the host: it reads the token, looks whether the text ends there,
records what happened, and launches the next step. But all that the next pass needs is there before: the token on the
device, and its slot, which follows the last one's. So that pass is launched at once, and the host does its work while
it runs (vLLM calls this asynchronous scheduling).

The slot lies in the block that this step wrote to, which the sequence keeps. If it turns out to have ended, the pass
was in vain and its block is given back: whoever takes it writes to a slot before reading it, later on the same device.

Only captured steps are launched ahead. Launching others takes the host as long as the GPU needs for them, and capturing
one now would delay the tokens that are about to be read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Several
from dataclasses import dataclass

import torch

from lab.backends.torch.torch_backend import NewTokens, forward, is_captured
from lab.engine.scheduler import Turn
from lab.engine.sequence import Sequence
from lab.kv_cache.formats import KVStorage
from lab.models.language_model import LanguageModel
from lab.util.step_timer import StepTimer

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Ahead:
    """A pass that has been launched.

    Attributes:
        slots: of each of its sequences, where the new token's keys and values go.
        logits: [sequences, vocabulary] float32.
        clock: times the pass.
        before: seconds that the host has spent, since it read the last step's result, on the rest of that step.
    """

    slots: dict[Sequence, int]
    logits: torch.Tensor
    clock: StepTimer
    before: float = 0.0

    def logits_of(self, turns: list[Turn]) -> torch.Tensor | None:
        """[turns, vocabulary]; None if it is not what all of these turns are to compute."""
        if any(
            (turn.count, turn.window) != (1, 0)
            or self.slots.get(turn.sequence) != _slot(turn.sequence, len(turn.sequence.tokens) - 1)
            for turn in turns
        ):
            return None
        rows = {sequence: row for row, sequence in enumerate(self.slots)}
        wanted = [rows[turn.sequence] for turn in turns]
        return self.logits if wanted == list(rows.values()) else torch.stack([self.logits[row] for row in wanted])


def launch_ahead(
    model: LanguageModel, storage: KVStorage, sequences: Several[Sequence], own: torch.Tensor
) -> Ahead | None:
    """Launch the pass over the tokens that ``sequences`` are about to get. None: it cannot be done ahead.

    Args:
        sequences: none of them has blocks beyond the tokens it has now, as one with proposals would.
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
        clock = StepTimer(model.device)
        logits = forward(model, batch, storage)
        clock.mark("verify")
    except Exception:  # computed in its turn, it succeeds or says why not
        log.warning("a step could not be launched ahead", exc_info=True)
        return None
    return Ahead({sequence: _slot(sequence, len(sequence.tokens)) for sequence in sequences}, logits, clock)


def _can_go_on(sequence: Sequence) -> bool:
    """Whether there is a slot for one more token, which will not be the last, and nothing to propose after it."""
    known = len(sequence.tokens)
    room = sequence.table is not None and sequence.table.capacity > known
    return room and known + 1 < sequence.end and sequence.drafter is None


def _slot(sequence: Sequence, position: int) -> int:
    """The slot of a position; -1: there is none."""
    if sequence.table is None or position >= sequence.table.capacity:
        return -1
    size = sequence.table.pool.block_size
    return sequence.table.blocks[position // size] * size + position % size
