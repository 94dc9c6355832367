"""The index tensors of a step that kernels compute: made on the host, brought to the device in one copy."""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from operator import add
from typing import NamedTuple

import numpy as np
import torch

from lab.backends.gpu.paged_attention import attend_by_kernels
from lab.kv_cache.attention_metadata import BlockPlan
from lab.kv_cache.storage import KVStorage


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

    def plan(
        self, block_size: int, longest_new: int, longest: int, storage: KVStorage, others: "Sequence[Packed]" = ()
    ) -> BlockPlan:
        """The plan of a forward pass over these rows; the arguments are attributes of the plan. ``others``: the same
        rows in the blocks of further KV cache groups."""
        where, sizes = (self.write, self.starts, self.lengths, self.tables), (block_size, longest_new, longest, storage)
        return BlockPlan(*where, *sizes, attend_by_kernels, tuple(one.plan(*sizes) for one in others))


class Layout(NamedTuple):
    """The sizes of a step's tensors, which lie one after another in one: N ``rows``, K ``kept``, S ``sequences``, B
    ``height``.

    Where they are larger than the step, it is padded. A padding sequence has no new tokens. A padding row belongs to no
    sequence and is written nowhere; what is computed for it is meaningless.
    """

    rows: int
    kept: int
    sequences: int
    height: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers in each tensor."""
        rows, kept, sequences, height = self
        return rows, rows, kept, sequences + 1, sequences, sequences * height

    def split(self, joined: torch.Tensor | np.ndarray) -> Packed:
        """Views of ``joined``, [sum of ``sizes``]; of an array: arrays."""
        parts = [joined[end - size : end] for size, end in zip(self.sizes, accumulate(self.sizes), strict=True)]
        return Packed(*parts[:-1], parts[-1].reshape(self.sequences, self.height))

    def pack(
        self,
        counts: Sequence[int],
        starts: Sequence[int],
        keep: Sequence[int],
        tables: "Sequence[array[int]]",
        block_size: int,
        device: torch.device,
    ) -> torch.Tensor:
        """A step's tensors, joined: [sum of ``sizes``] int32 on the host, in pinned memory if it is for a GPU.

        In numpy, which takes less time than torch for many small operations: a GPU has nothing to do meanwhile.

        Args:
            counts: new tokens of each sequence; ``starts``: position of the first; ``keep``: logits are wanted for so
                many of the last.
            tables: blocks of each sequence, int32, at least as many as its tokens need.
        """
        known, new = len(counts), sum(counts)
        joined = torch.zeros(sum(self.sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
        packed = self.split(joined.numpy())
        for table, blocks in zip(packed.tables, tables, strict=False):  # the rest are padding
            part = blocks[: self.height]
            table[: len(part)] = part
        lengths, ends, positions = packed.lengths[:known], packed.starts[1 : known + 1], packed.positions[:new]
        lengths[:] = list(map(add, starts, counts))
        ends[:] = list(accumulate(counts))
        packed.starts[known + 1 :] = new
        # Without divmod and flatnonzero, which for a few numbers take several times as long as what is used here.
        sequence, row = np.arange(known).repeat(counts), np.arange(new, dtype=np.int32)
        np.add(row, (lengths - ends)[sequence], out=positions)
        block = positions // block_size
        stored_in = packed.tables.ravel()[sequence * self.height + block]
        packed.write[:new] = (stored_in - block) * block_size + positions
        packed.write[new:] = -1
        first_kept = ends - np.array(keep, np.int32)
        packed.kept[: sum(keep)] = (row >= first_kept[sequence]).nonzero()[0]
        return joined
