"""The drafters with a head that reads the target's hidden states (``lab.models``: ``eagle3_head``, ``mtp_head``,
``dflash_head``, ``dspark_head``)."""

from __future__ import annotations

import functools
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from lab.backends.interface import PROPOSE, DraftTokens, HeadBackend, NewTokens
from lab.engine.drafter import Drafter
from lab.engine.pass_cost import PassCostModel, Span
from lab.engine.sequence import Sequence
from lab.kv_cache.storage import KVStorage
from lab.models.state_head import StateHead
from lab.trace.roofline import PassCost
from lab.util.device_copy import several_on_device


class States(NamedTuple):
    """The target's hidden states of a sequence's tokens from position ``first`` on, [count, width]."""

    first: int
    rows: torch.Tensor


class HeadDrafter(Drafter):
    """Drafts from the target's hidden states of the text.

    A token's keys and values lie under the target's slot number, and depend on nothing after it. What was stored for
    draft tokens is written again when they are accepted, from the target's own hidden states.

    Attributes:
        lag: a token is read with the hidden states of the token so many before it, and the first ``lag`` never.
    """

    lag: int

    def __init__(self, backend: HeadBackend, storage: KVStorage | None) -> None:
        super().__init__()
        self._backend, self._storage = backend, storage
        self._states: WeakKeyDictionary[Sequence, States] = WeakKeyDictionary()
        self._costs = PassCostModel(backend, storage)

    @property
    def head(self) -> StateHead:
        return self._backend.model

    def take(self, sequence: Sequence, rows: torch.Tensor) -> None:
        """Keep the hidden states of the tokens from ``sequence.computed`` on, which the target has just computed; and
        those before that are not read yet."""
        first = sequence.computed
        earlier = self._states.get(sequence)
        if earlier and earlier.first < first <= earlier.first + earlier.rows.shape[0]:
            first, rows = earlier.first, torch.cat([earlier.rows[: first - earlier.first], rows])
        self._states[sequence] = States(first, rows)

    def propose(self, sequences: list[Sequence], windows: list[int]) -> list[DraftTokens | None]:
        lengths = [len(sequence.tokens) for sequence in sequences]
        known = [length - 1 for length in lengths]  # hidden states: the newest token is not computed yet
        batch, states = self._unread(sequences, lengths, known)
        uniforms = [s.draws(w)[:, PROPOSE] for s, w in zip(sequences, windows, strict=True)]
        how = [s.draft_sampling for s in sequences]
        drafts = self._backend.draft(batch, states, windows, how, uniforms, self._storage)
        self._note_read(sequences, known)
        return drafts

    def read(self, sequences: list[Sequence], stops: list[int]) -> PassCost:
        if self._storage is None:
            return PassCost()
        some = [(s, stop) for s, stop in zip(sequences, stops, strict=True) if stop > self._start(s)]
        if not some:
            return PassCost()
        sequences, stops = map(list, zip(*some, strict=True))
        known = [stop - self.lag for stop in stops]
        batch, states = self._unread(sequences, stops, known)
        batch = [new._replace(keep=0) for new in batch]
        self._backend.read(batch, states, self._storage)
        self._note_read(sequences, known)
        return self._read_cost(batch)

    def _read_cost(self, batch: list[NewTokens]) -> PassCost:
        raise NotImplementedError

    def is_behind(self, sequences: list[Sequence]) -> bool:
        # In a usual round it reads the accepted draft tokens again, and the token after them.
        return any(
            sequence.table and self._num_unread(sequence) > sequence.draft.window.most + 1 for sequence in sequences
        )

    def _num_unread(self, sequence: Sequence) -> int:
        """Tokens that it reads when it is asked to propose."""
        return len(sequence.tokens) - 1 + self.lag - self._start(sequence)

    def _unread(
        self, sequences: list[Sequence], stops: list[int], known: list[int]
    ) -> tuple[list[NewTokens], list[torch.Tensor]]:
        """Each sequence's tokens up to ``stop`` that are not read yet, and the hidden states that they are read with,
        up to that of position ``known`` - 1."""
        starts = [self._start(sequence) for sequence in sequences]
        unread = [s.tokens[start:stop] for s, start, stop in zip(sequences, starts, stops, strict=True)]
        batch, states = [], []
        for sequence, start, until, new in zip(
            sequences, starts, known, several_on_device(unread, self.head.device), strict=True
        ):
            batch.append(NewTokens(new, start if sequence.table else 0, sequence.table, keep=1))
            (first, rows), begin = self._states[sequence], start - self.lag
            states.append(rows[max(0, begin - first) : until - first])
            if begin < first or states[-1].shape[0] < until - begin:
                raise RuntimeError("hidden states of the target are missing")
        return batch, states

    def _note_read(self, sequences: list[Sequence], known: list[int]) -> None:
        for sequence, until in zip(sequences, known, strict=True):
            if sequence.table:
                sequence.draft.num_computed = until + self.lag
                first, rows = self._states[sequence]
                self._states[sequence] = States(until, rows[until - first :])  # for what is read next

    def _start(self, sequence: Sequence) -> int:
        """The first token that it has not read."""
        return max(self.lag, sequence.draft.num_computed)


class ChainDrafter(HeadDrafter):
    """Drafts in a chain, with an EAGLE-3 or MTP head: each of its outputs stands for the hidden states of the token it
    proposed."""

    lag = 1

    def cost(self, sequences: list[Sequence], windows: list[int]) -> PassCost:
        spans = [Span(self._start(sequence), len(sequence.tokens), keep=1) for sequence in sequences]
        return self._costs.decoding(spans, windows) + self._fusing(sum(stop - start for start, stop, _ in spans))

    def _read_cost(self, batch: list[NewTokens]) -> PassCost:
        return self._costs.of([Span(new.start, new.stop, 0) for new in batch]) + self._fusing(
            sum(len(new.token_ids) for new in batch)
        )

    def _fusing(self, count: int) -> PassCost:
        weight = self.head.fc.weight
        return PassCost(weight.nbytes, 2 * count * weight.numel()) if count else PassCost()


class DFlashDrafter(HeadDrafter):
    """Drafts all tokens of a round in one pass over a block of masks, each without regard to the others."""

    lag = 0

    def cost(self, sequences: list[Sequence], windows: list[int]) -> PassCost:
        lengths = [len(sequence.tokens) for sequence in sequences]
        blocks = [Span(length - 1, length + w, keep=w) for length, w in zip(lengths, windows, strict=True)]
        return self._costs.of(blocks) + self._reading(sum(map(self._num_unread, sequences)))

    def _read_cost(self, batch: list[NewTokens]) -> PassCost:
        return self._reading(sum(len(new.token_ids) for new in batch))

    def _reading(self, count: int) -> PassCost:
        """The cost of ``count`` tokens' keys and values."""
        if not count:
            return PassCost()
        stored = self._storage.slot_bytes(range(self.head.layers)) if self._storage else 0
        each = 2 if self._backend.reads_packed_weights else self.head.dtype.itemsize
        return PassCost(each * self._text_weights + count * stored, 2 * count * self._text_weights)

    @functools.cached_property
    def _text_weights(self) -> int:
        return sum(weight.numel() for weight in self.head.text_weights)


HEAD_DRAFTERS = {"eagle3": ChainDrafter, "mtp": ChainDrafter, "dflash": DFlashDrafter, "dspark": DFlashDrafter}
