"""The index tensors of a step that kernels compute: made on the host, brought to the device in one copy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional as F

from lab.kv.plan import BlockPlan
from lab.kv.storage import KVStorage


class Packed(NamedTuple):
    """S sequences with N new tokens between them. All tensors are int32: half the bytes to copy to the device.

    Attributes:
        positions: [N], those of the new tokens, sequence by sequence.
        write: [N], a slot for each new token; -1: none.
        kept: [K], the rows whose logits are wanted.
        starts: [S + 1], the row at which each sequence begins; the last is N.
        lengths: [S], tokens of each sequence, the new ones included.
        tables: [S, B], the blocks of each sequence in order of position, shorter rows padded.
    """

    positions: torch.Tensor
    write: torch.Tensor
    kept: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor

    @classmethod
    def nothing(cls) -> Packed:
        """No sequence at all: padded, it is a step that changes nothing."""
        none = torch.zeros(0, dtype=torch.int32)
        return cls(none, none, none, torch.zeros(1, dtype=torch.int32), none, none.view(0, 0))

    def padded(self, rows: int, sequences: int, height: int) -> Packed:
        """The same step in larger tensors: N and K ``rows``, S ``sequences``, B ``height``.

        A padding sequence has no new tokens. A padding row belongs to no sequence and is written nowhere;
        what is computed for it is meaningless.
        """
        new, known = rows - len(self.positions), sequences - len(self.lengths)
        return Packed(
            F.pad(self.positions, (0, new)),
            F.pad(self.write, (0, new), value=-1),
            F.pad(self.kept, (0, rows - len(self.kept))),
            F.pad(self.starts, (0, known), value=len(self.positions)),
            F.pad(self.lengths, (0, known)),
            F.pad(self.tables, (0, height - self.tables.shape[1], 0, known)),
        )

    def joined(self) -> torch.Tensor:
        """All of the tensors in one."""
        return torch.cat([part.flatten() for part in self])

    def split(self, joined: torch.Tensor) -> Packed:
        """Views of ``joined``, which was joined from tensors of these shapes."""
        parts = joined.split([part.numel() for part in self])
        return Packed(*(part.view(like.shape) for part, like in zip(parts, self, strict=True)))

    def plan(self, block_size: int, longest_new: int, longest: int, storage: KVStorage) -> BlockPlan:
        """The plan of a forward pass over these rows; the arguments are attributes of the plan."""
        return BlockPlan(
            write=self.write,
            starts=self.starts,
            lengths=self.lengths,
            tables=self.tables,
            block_size=block_size,
            longest_new=longest_new,
            longest=longest,
            storage=storage,
        )
