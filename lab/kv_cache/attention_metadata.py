"""A step's plan: what attention needs to know about the sequences whose tokens the step packs.

``input_ids`` of a packed forward pass is [1, N]: new tokens of several sequences, one after another. A plan says which
rows belong to which sequence, into which slots their keys and values go, and which slots each sequence may read: a
``StepPlan`` for attention by torch, a ``BlockPlan`` for the kernels.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from typing import Literal, NamedTuple

import torch

from lab.kv_cache.storage import KVStorage

SdpaChoice = Literal["auto", "math", "efficient", "flash"]
"""Which of torch's back ends computes a prompt's attention (``lab.kv_cache.attention.BACKENDS``)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Metadata that goes with a step through the layers, on whichever devices they are."""

    copies: dict[torch.device, Plan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def to(self, device: torch.device | int | str, non_blocking: bool = False) -> Plan:
        """The plan with its tensors on ``device``, copied there once a step. accelerate's hooks call it before each
        module of a model on several devices."""
        device = torch.device(device)
        if device not in self.copies:
            parts = {part.name: getattr(self, part.name) for part in fields(self) if part.init}
            self.copies[device] = replace(self, **{name: _on(part, device) for name, part in parts.items()})
            self.copies[device].copies[device] = self.copies[device]
        return self.copies[device]


@dataclass(frozen=True, slots=True)
class Group(Plan):
    """Sequences with equally many new tokens and of about equal length: one call of torch's attention.

    Attributes:
        rows: their rows of the packed tokens, sequence by sequence.
        sequences: how many there are; S below. Each has T new tokens and at most L in all.
        mask: [S, 1, G * T or 1, L] bool, which of its positions each new token may see: those up to its
            own. G: query heads that share a KV head. None: every new token sees all.
        positions: [S, T] int64, of the new tokens among those in ``read``. None where no layer has a window.
        read: the slots of all their positions so far that are kept, the new ones included, in order: a run of
            slots, or [S * L] int64, the shorter ones padded. None without a cache.
    """

    rows: slice
    sequences: int
    mask: torch.Tensor | None
    read: slice | torch.Tensor | None = None
    positions: torch.Tensor | None = None
    windows: dict[int, torch.Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def within(self, window: int, length: int, shared: int) -> torch.Tensor:
        """The mask of a layer in which a token sees the last ``window`` positions, its own included: [S, 1, G * T or 1,
        L] bool. Made once a step. ``length``: L. ``shared``: G."""
        if window not in self.windows:
            own, places = self.positions[:, :, None], torch.arange(length, device=self.positions.device)
            seen = (places <= own) & (places > own - window)
            self.windows[window] = (seen.repeat(1, shared, 1) if seen.shape[1] > 1 else seen)[:, None]
        return self.windows[window]


@dataclass(frozen=True, slots=True)
class StepPlan(Plan):
    """The reference's metadata of a step, besides the N tokens of a packed forward pass.

    Attributes:
        groups: in the order of their rows.
        write: [N] int64, a slot for each new token. None without a cache.
        storage: None without a cache.
        sdpa: the back end. "auto": torch chooses. Any other: each group is one sequence, and needs no mask.
        others: the same for the layers of each further KV cache group, whose slots are others.
    """

    groups: tuple[Group, ...]
    write: torch.Tensor | None
    storage: KVStorage | None
    sdpa: SdpaChoice = "auto"
    others: tuple[StepPlan, ...] = ()

    def of_layer(self, layer: int) -> StepPlan:
        group = self.storage.group_of[layer] if self.others else 0
        return self.others[group - 1] if group else self


class Scores(NamedTuple):
    """Changes to a layer's scores before the softmax, besides scaling; arguments of ``attention`` explain each."""

    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


ONLY_SCALED = Scores()


@dataclass(frozen=True, slots=True)
class BlockPlan(Plan):
    """The kernels' metadata of a step, besides its N tokens of S sequences one after another.

    Attributes:
        write: [N] int32 or int64, as are the other tensors; a slot for each new token.
        starts: [S + 1], the row at which each sequence begins; the last is N.
        lengths: [S], tokens of each sequence, the new ones included.
        tables: [S, B], the blocks of each sequence in order of position, shorter rows padded.
        block_size: slots in a block.
        longest_new: most new tokens of a sequence.
        longest: most tokens of a sequence.
        storage: where keys and values go.
        attend: stores a layer's new keys and values, and attends:
            ``attend(layer_idx, query [N, heads, d], key [N, kv_heads, d], value, plan, scaling, scores)`` -> [N, heads,
            d].
        others: the same for the layers of each further KV cache group, whose slots are others.
    """

    write: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor
    block_size: int
    longest_new: int
    longest: int
    storage: KVStorage
    attend: Callable[..., torch.Tensor] | None = None
    others: tuple[BlockPlan, ...] = ()

    def of_layer(self, layer: int) -> BlockPlan:
        group = self.storage.group_of[layer] if self.others else 0
        return self.others[group - 1] if group else self


current_plan: ContextVar[StepPlan | BlockPlan | None] = ContextVar("current_plan", default=None)
"""That of the pass under way, for the layers of models that do not hand on to attention what they are given."""


def side_by_side(tables: Sequence[array[int]], height: int) -> array[int]:
    """The first ``height`` blocks of S sequences, [S, height] int32 row by row, the shorter ones padded with 0."""
    rows = array("i", bytes(array("i").itemsize * len(tables) * height))
    for start, blocks in zip(range(0, len(rows), height), tables, strict=True):
        part = blocks[:height]
        rows[start : start + len(part)] = part
    return rows


def _on(part: object, device: torch.device) -> object:
    if isinstance(part, tuple):
        return tuple(_on(one, device) for one in part)
    return part.to(device) if isinstance(part, (torch.Tensor, Plan)) else part
