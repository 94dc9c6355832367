"""A step's plan: what its attention needs to know of the sequences whose tokens it packs.

``input_ids`` of a packed forward is [1, N]: some new tokens of some sequences, one after another. A plan says which
rows are whose, into which slots their keys and values go, and which slots each sequence may look at. It goes with the
step through all layers: a ``StepPlan`` for attention by torch, a ``BlockPlan`` for the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Literal

import torch

from lab.kv.storage import KVStorage

SdpaChoice = Literal["auto", "math", "efficient", "flash"]
"""Who computes attention of a prompt by torch (``lab.kv.attention.BACKENDS``)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What follows a step through the layers, to wherever they are."""

    copies: dict[torch.device, Plan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def to(self, device: torch.device | int | str, non_blocking: bool = False) -> Plan:
        """The plan with its tensors on ``device``, copied there once a step.

        accelerate's hooks call it, as they call every argument's ``to``, before each module of a model that is
        on several devices.
        """
        device = torch.device(device)
        if device not in self.copies:
            parts = {part.name: getattr(self, part.name) for part in fields(self) if part.init}
            self.copies[device] = replace(self, **{name: _on(part, device) for name, part in parts.items()})
            self.copies[device].copies[device] = self.copies[device]
        return self.copies[device]


@dataclass(frozen=True, slots=True)
class Group(Plan):
    """Sequences that bring equally many new tokens and are about equally long: one call of the kernel.

    Attributes:
        rows: theirs of the packed tokens, sequence by sequence.
        sequences: how many they are; S below. Each has T new tokens and at most L in all.
        mask: [S, 1, G * T or 1, L] bool, which of its positions each new token may see: those up to its
            own. G: query heads that share a KV head. None: every new token sees all.
        read: the slots of all their positions so far, the new ones included, in order: a run of
            slots, or [S * L] int64, the shorter ones padded. None without a cache.
    """

    rows: slice
    sequences: int
    mask: torch.Tensor | None
    read: slice | torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepPlan(Plan):
    """What the reference needs beside the N tokens of a packed forward.

    Attributes:
        groups: in the order of their rows.
        write: [N] int64, a slot for each new token. None without a cache.
        storage: None without a cache.
        sdpa: who computes it. "auto": torch chooses. Another: each group is one sequence, and needs no mask.
    """

    groups: tuple[Group, ...]
    write: torch.Tensor | None
    storage: KVStorage | None
    sdpa: SdpaChoice = "auto"


@dataclass(frozen=True, slots=True)
class BlockPlan(Plan):
    """What the kernels need beside the N tokens of a packed forward, S sequences one after another.

    Attributes:
        write: [N] int32 or int64, as are the others; a slot for each new token.
        starts: [S + 1], the row at which each sequence begins; last N.
        lengths: [S], tokens of each, the new ones included.
        tables: [S, B], the blocks of each in the order of their positions, the shorter ones padded.
        block_size: slots in a block.
        longest_new: most new tokens of a sequence.
        longest: most tokens of a sequence.
        storage: where they go.
    """

    write: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor
    block_size: int
    longest_new: int
    longest: int
    storage: KVStorage


def _on(part: object, device: torch.device) -> object:
    if isinstance(part, tuple):
        return tuple(_on(one, device) for one in part)
    return part.to(device) if isinstance(part, (torch.Tensor, Plan)) else part
