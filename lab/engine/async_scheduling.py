"""The next step's pass, launched before the host has read this step's result.

Between two steps of plain decoding a GPU waits for the host: it reads the token, looks whether the text ends there,
records what happened, and launches the next step. But all that the next pass needs is there before: the token on the
device, and its slot. So that pass is launched at once (vLLM calls this asynchronous scheduling).

The slot lies in a block of the sequence. If the sequence has ended, the pass is wasted and the block is
freed: whoever takes it writes to a slot before reading it, later on the same device.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lab.backends.interface import Backend, LaunchedPass, NewTokens, PendingVerification
from lab.engine.drafters import Drafters
from lab.engine.pass_cost import ExpertsRead
from lab.engine.scheduler import ScheduledSequence, Scheduler
from lab.engine.sequence import Sequence
from lab.kv_cache.kv_cache import KVCache


@dataclass(slots=True)
class PassAhead:
    """A step's pass that was launched before the step.

    Attributes:
        slots: of each of its sequences, where the new token's keys and values go.
        launched: its logits are [sequences, vocabulary] float32.
        experts: those that it reads, of a mixture.
        before: seconds that the host has spent, since it read the last step's result, on the rest of that step.
    """

    slots: dict[Sequence, int]
    launched: LaunchedPass
    experts: list[ExpertsRead]
    before: float = 0.0

    def logits_of(self, scheduled: list[ScheduledSequence]) -> torch.Tensor | None:
        """[sequences, vocabulary]; None if it is not what all of these are to compute."""
        if any(
            (one.num_tokens, one.num_draft_tokens) != (1, 0)
            or self.slots.get(one.sequence) != _slot(one.sequence, len(one.sequence.tokens) - 1)
            for one in scheduled
        ):
            return None
        rows, logits = {sequence: row for row, sequence in enumerate(self.slots)}, self.launched.logits
        wanted = [rows[one.sequence] for one in scheduled]
        return logits if wanted == list(rows.values()) else torch.stack([logits[row] for row in wanted])


class AsyncScheduling:
    """Launches passes ahead, for the steps of one core. ``ahead``: the one for the next step, if there is one."""

    def __init__(
        self,
        target: Backend,
        cache: KVCache | None,
        drafters: Drafters,
        scheduler: Scheduler,
        experts_read: Callable[[], list[ExpertsRead]],
        *,
        on: bool,
    ) -> None:
        self._target, self._storage = target, cache and cache.target
        self._drafters, self._scheduler, self._experts_read = drafters, scheduler, experts_read
        self._on = on and self._storage is not None
        self.ahead: PassAhead | None = None

    def take(self) -> PassAhead | None:
        ahead, self.ahead = self.ahead, None
        return ahead

    def launch(self, scheduled: list[ScheduledSequence], pending: PendingVerification | None) -> None:
        """Launch the next step, if it will be another token of each of these sequences, as far as is known now."""
        if not (self._on and pending and self._target.launches_ahead) or self._scheduler.may_admit:
            return
        plain = all(one.complete and not one.num_draft_tokens for one in scheduled)  # even if nothing was drafted
        sequences = [one.sequence for one in scheduled]
        if not plain or len(scheduled) != len(self._scheduler.running) or not all(map(self._can_go_on, sequences)):
            return
        batch = [
            NewTokens(token, len(sequence.tokens), sequence.table, keep=1)
            for token, sequence in zip(pending.target_tokens.split(1), sequences, strict=True)
        ]
        if launched := self._target.launch_ahead(batch, self._storage):
            slots = {sequence: _slot(sequence, len(sequence.tokens)) for sequence in sequences}
            self.ahead = PassAhead(slots, launched, self._experts_read())

    def note_host_time(self, read_at: float) -> None:
        """The step ends, which had read its result at ``read_at`` by ``time.perf_counter``."""
        if self.ahead:
            self.ahead.before = time.perf_counter() - read_at

    def _can_go_on(self, sequence: Sequence) -> bool:
        """True if there is a slot for one more token, which will not be the last, and nothing to draft after it."""
        known = len(sequence.tokens)
        room = sequence.table is not None and sequence.table.capacity > known
        return room and known + 1 < sequence.end and self._drafters.of(sequence) is None


def _slot(sequence: Sequence, position: int) -> int:
    """The slot of a position; -1: there is none."""
    if sequence.table is None or position >= sequence.table.capacity:
        return -1
    size = sequence.table.pool.block_size
    return sequence.table.blocks[position // size] * size + position % size
