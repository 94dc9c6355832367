"""The recurrent state of one sequence, kept by layers that keep no keys and values.

A short convolution (LFM2) keeps its last inputs, a Gated DeltaNet (Yang et al., 2412.06464) and a Mamba2 (Dao and Gu,
2405.21060) a matrix per head besides: as much for a long text as for a short one. It lies beside a sequence's blocks,
is made with its block table and goes with it; a preempted sequence computes it again.

Keys and values of rejected draft tokens are overwritten later. A state has taken them in, and must go back to one from
before. Two ways: keep the state after every draft token ("snapshots"), for which the layers compute them one by one; or
keep the state before the round and what went into each layer, and compute the accepted ones again ("recompute").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch
from torch.nn import functional as F

from lab.kv_cache.block_table import BlockTable
from lab.kv_cache.prefix_cache import Prefix

Rollback = Literal["snapshots", "recompute"]
Compute = Callable[[int, torch.Tensor, "LayerState"], torch.Tensor]
"""``compute(layer, inputs [1, T, H], state)`` -> [1, T, H], which leaves in ``state`` that after the last of them."""


class LayerState:
    """The state of one layer. A layer of transformers reads and writes it as a ``Cache``, of which these are methods.
    The state that it was made from stays as it was.

    Attributes:
        conv: last inputs of each convolution, [1, channels, at most as many as its kernel is wide].
        recurrent: each recurrence's numbers.
    """

    def __init__(self, before: LayerState | None = None) -> None:
        self.conv: dict[int, torch.Tensor] = dict(before.conv) if before else {}
        self.recurrent: dict[int, torch.Tensor] = dict(before.recurrent) if before else {}

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in (*self.conv.values(), *self.recurrent.values()))

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return _own(self.conv, state_idx)

    def update_conv_state(
        self,
        conv_states: torch.Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_: object,
    ) -> torch.Tensor:
        """Append, and keep as many as the kernel is wide: zeros before the text begins. Returns all."""
        before = self.conv.get(state_idx)
        size = conv_kernel_size or (conv_states if before is None else before).shape[-1]
        whole = conv_states if before is None else torch.cat([before, conv_states], dim=-1)
        self.conv[state_idx] = F.pad(whole[..., -size:].clone(), (max(0, size - whole.shape[-1]), 0))
        return whole

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return _own(self.recurrent, state_idx)

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **_: object
    ) -> torch.Tensor:
        self.recurrent[state_idx] = recurrent_states
        return recurrent_states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return bool(self.conv or self.recurrent)

    def is_recording_past(self, layer_idx: int) -> bool:
        """True: so a layer does not update its convolution's inputs in place."""
        return True


def _own(states: dict[int, torch.Tensor], index: int) -> torch.Tensor | None:
    """A state, first copied: Kimi Linear updates its convolution's in place, Mamba2 its recurrence's."""
    if index in states:
        states[index] = states[index].clone()
    return states.get(index)


@dataclass(slots=True)
class Checkpoint:
    """The state of all layers after the tokens before ``position``.

    Attributes:
        inputs: [1, T, H] of each layer, of the T tokens that were computed from here, to compute some of them again.
            Empty: none of them can be rejected, or there is a state after each.
    """

    position: int
    layers: dict[int, LayerState] = field(default_factory=dict)
    inputs: dict[int, torch.Tensor] = field(default_factory=dict)


class RecurrentState:
    """A sequence's state in one model's layers, at each position that it may have to go back to, the last one last.

    Attributes:
        uncertain: tokens of the last pass that may be rejected.
        rollback: the way that it goes back before them.
    """

    def __init__(self, begin: Checkpoint | None = None) -> None:
        """``begin``: that to go on from, as others may; None: there is no text yet."""
        self.marks = [Checkpoint(begin.position, dict(begin.layers)) if begin else Checkpoint(0)]
        self._kept: dict[bool, list[tuple[int, Prefix]]] = {True: [], False: []}  # by whether a prompt was read
        self._computing: list[Checkpoint] = []
        self.rollback: Rollback = "recompute"
        self.uncertain = 0
        self._reads_prompt = self._drafts = False

    @property
    def bytes(self) -> int:
        """Bytes of one state: the last one."""
        return sum(layer.bytes for layer in self.marks[-1].layers.values())

    def rewind(self, start: int, settled: int, compute: Compute) -> tuple[int, int]:
        """Go back to the state before the token at ``start``. Positions before ``settled`` are never gone back to.

        Returns how many tokens it had taken in since, and how many were computed again in each layer.
        """
        marks, stop = self.marks, self.marks[-1].position
        while marks and marks[-1].position > start:
            marks.pop()
        if not marks:
            if start:
                raise RuntimeError(f"there is no recurrent state before position {start}")
            marks.append(Checkpoint(0))
        before, again = marks[-1], start - marks[-1].position
        if again:
            there = Checkpoint(start)
            for layer, inputs in before.inputs.items():
                there.layers[layer] = LayerState(before.layers.get(layer))
                compute(layer, inputs[:, :again], there.layers[layer])
            marks.append(there)
        while len(marks) > 1 and marks[1].position <= settled:
            del marks[0]
        return max(0, stop - start), again

    def follow(self, other: RecurrentState) -> None:
        """Go on from another's last state."""
        last = other.marks[-1]
        self.marks = [Checkpoint(last.position, dict(last.layers))]

    def begin(
        self, count: int, uncertain: int, rollback: Rollback, block_size: int | None = None, behind: int = 0
    ) -> None:
        """Begin a pass over ``count`` tokens, of which the last ``uncertain`` may be rejected. ``block_size``: there is
        to be a state where the last block ends before the pass's last token, and where ``behind`` before it end."""
        self._drafts = False
        start, stop = self.marks[-1].position, self.marks[-1].position + count
        ends = {stop, *range(stop - uncertain, stop)} if uncertain and rollback == "snapshots" else {stop}
        if block_size:
            ends |= {((stop - 1) // block_size - n) * block_size for n in range(behind + 1)}
        self._reads_prompt = count > 1 and not uncertain
        self.uncertain, self.rollback = uncertain, rollback
        self._computing = [self.marks[-1], *(Checkpoint(end) for end in sorted(ends) if end > start)]
        self.marks += self._computing[1:]

    def begin_drafting(self, count: int, rollback: Rollback) -> None:
        """Begin a pass whose tokens were drafted in turn, so that any of them may be rejected. To compute them again,
        the state before the first is enough."""
        before, after = self.marks[-1], Checkpoint(self.marks[-1].position + count)
        self.uncertain, self.rollback, self._drafts = 0, rollback, rollback == "recompute"
        self._computing = [before, after]
        self.marks = [self.marks[0], after] if self._drafts else [*self.marks, after]

    def keep(self, table: BlockTable) -> None:
        """Keep the state at the end of the last full block with the block's prefix, for others to go on from, and at
        the ends of ``table.states_behind`` before it. Of each sequence there are two: the last one within its prompt
        (before its last token, which the same prompt computes), and the last one after it."""
        size, longest, states = table.pool.block_size, table.length - self._reads_prompt, table.pool.states
        kept = self._kept[self._reads_prompt]
        table.state = None  # it was taken over
        for mark in self.marks:
            newer = mark.position > (kept[-1][0] if kept else 0)
            if not newer or mark.position % size or mark.position > longest or not mark.layers:
                continue
            if (prefix := table.prefix(mark.position)) and not prefix.state:
                states.keep(prefix, Checkpoint(mark.position, dict(mark.layers)))
                kept.append((mark.position, prefix))
                if len(kept) > 1 + table.states_behind:
                    states.drop(kept.pop(0)[1])

    def run(self, layer: int, inputs: torch.Tensor, compute: Compute) -> torch.Tensor:
        """One layer's part of the pass: [1, count, H] -> [1, count, H]."""
        outputs, start = [], self._computing[0].position
        for mark, after in pairwise(self._computing):
            some = inputs[:, mark.position - start : after.position - start]
            if self._drafts and mark is not (first := self.marks[0]):
                first.inputs[layer] = torch.cat((first.inputs[layer], some), dim=1)
            elif self._drafts or (self.uncertain and self.rollback == "recompute"):
                mark.inputs[layer] = some
            after.layers[layer] = LayerState(mark.layers.get(layer))
            outputs.append(compute(layer, some, after.layers[layer]))
        return torch.cat(outputs, dim=1)
