"""The drafter with an EAGLE-3 head (``lab.models.eagle3_head``)."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from lab.backends.interface import PROPOSE, DraftTokens, HeadBackend, NewTokens
from lab.engine.drafter import Drafter
from lab.engine.pass_cost import PassCostModel, Span
from lab.engine.sequence import Sequence
from lab.kv_cache.formats import KVStorage
from lab.trace.roofline import PassCost
from lab.util.device_copy import several_on_device


class States(NamedTuple):
    """The target's hidden states of a sequence's tokens from position ``first`` on, [count, width]."""

    first: int
    rows: torch.Tensor


class Eagle3Drafter(Drafter):
    """Drafts from the target's hidden states, in a chain: each of the head's outputs stands for those of the token that
    it proposed.

    A token's keys and values lie under the target's slot number, and depend on nothing after it: on the token and the
    hidden states of the one before. What was stored for draft tokens is written again when they are accepted, from the
    target's own hidden states.
    """

    def __init__(self, backend: HeadBackend, storage: KVStorage | None) -> None:
        super().__init__()
        self._backend, self._storage = backend, storage
        self._states: WeakKeyDictionary[Sequence, States] = WeakKeyDictionary()
        self._costs = PassCostModel(backend, storage)
        fused = backend.model.fc.weight
        self._fused_bytes, self._fused_flops = fused.nbytes, 2 * fused.numel()

    def take(self, sequence: Sequence, rows: torch.Tensor) -> None:
        """Keep the hidden states of the tokens from ``sequence.computed`` on, which the target has just computed; and
        those before that are not read yet."""
        first = sequence.computed
        earlier = self._states.get(sequence)
        if earlier and earlier.first < first <= earlier.first + len(earlier.rows):
            first, rows = earlier.first, torch.cat([earlier.rows[: first - earlier.first], rows])
        self._states[sequence] = States(first, rows)

    def propose(self, sequences: list[Sequence], windows: list[int]) -> list[DraftTokens | None]:
        batch, states = self._unread(sequences, [len(sequence.tokens) for sequence in sequences], keep=1)
        uniforms = [s.draws(w)[:, PROPOSE] for s, w in zip(sequences, windows, strict=True)]
        how = [s.draft_sampling for s in sequences]
        drafts = self._backend.draft(batch, states, windows, how, uniforms, self._storage)
        self._note_read(sequences, [len(sequence.tokens) for sequence in sequences])
        return drafts

    def read(self, sequences: list[Sequence], stops: list[int]) -> PassCost:
        if self._storage is None:
            return PassCost()
        some = [(s, stop) for s, stop in zip(sequences, stops, strict=True) if stop > self._start(s)]
        if not some:
            return PassCost()
        sequences, stops = map(list, zip(*some, strict=True))
        batch, states = self._unread(sequences, stops, keep=0)
        self._backend.read(batch, states, self._storage)
        self._note_read(sequences, stops)
        return self._cost([Span(new.start, new.stop, 0) for new in batch], sum(map(len, states)))

    def cost(self, sequences: list[Sequence], windows: list[int]) -> PassCost:
        total = PassCost()
        for i in range(max(windows)):
            spans, fused = [], 0
            for sequence, window in zip(sequences, windows, strict=True):
                if window > i:
                    start, stop = self._start(sequence), len(sequence.tokens) + i
                    fused += 0 if i else stop - start
                    spans.append(Span(stop - 1 if i and sequence.table else start, stop, keep=1))
            total += self._cost(spans, fused)
        return total

    def is_behind(self, sequences: list[Sequence]) -> bool:
        # In a usual round it reads the accepted draft tokens again, and the token after them.
        return any(
            sequence.table and len(sequence.tokens) - self._start(sequence) > sequence.draft.window.most + 1
            for sequence in sequences
        )

    def _unread(
        self, sequences: list[Sequence], stops: list[int], keep: int
    ) -> tuple[list[NewTokens], list[torch.Tensor]]:
        """Each sequence's tokens up to ``stop`` that are not read yet, and the hidden states of those before them."""
        starts = [self._start(sequence) for sequence in sequences]
        unread = [s.tokens[start:stop] for s, start, stop in zip(sequences, starts, stops, strict=True)]
        batch, states = [], []
        for sequence, start, new in zip(
            sequences, starts, several_on_device(unread, self._backend.model.device), strict=True
        ):
            batch.append(NewTokens(new, start if sequence.table else 0, sequence.table, keep))
            first, rows = self._states[sequence]
            states.append(rows[start - 1 - first :][: len(new)])
            if start <= first or len(states[-1]) < len(new):
                raise RuntimeError("hidden states of the target are missing")
        return batch, states

    def _note_read(self, sequences: list[Sequence], stops: list[int]) -> None:
        for sequence, stop in zip(sequences, stops, strict=True):
            if sequence.table:
                sequence.draft.num_computed = stop
                first, rows = self._states[sequence]
                self._states[sequence] = States(stop - 1, rows[stop - 1 - first :])  # what the next token is read with

    def _cost(self, spans: list[Span], fused: int) -> PassCost:
        fusing = PassCost(self._fused_bytes, fused * self._fused_flops) if fused else PassCost()
        return self._costs.of(spans) + fusing

    @staticmethod
    def _start(sequence: Sequence) -> int:
        """The first token that it has not read. It never reads the very first, which has none before it."""
        return max(1, sequence.draft.num_computed)
