"""Who owns which block of the cache.

A block is ``block_size`` slots; a slot holds the keys and values of one token
position, in every layer. A sequence's block table maps position to slot:
``slot = table[position // block_size] * block_size + position % block_size``
(PagedAttention: Kwon et al., 2309.06180, section 4.1).

Two policies share this addressing, so they can be compared fairly: *contiguous*
reserves a run of neighbouring blocks for all the tokens a sequence may ever
have, when it starts; *paged* takes any free block when one is needed and gives
whole blocks back as soon as they hold nothing that is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lab.config import PoolExhaustedError
from lab.trace.events import BlockAllocated, BlockFreed

Emit = Callable[..., None]
"""Called as ``emit(EventType, **fields)``; the receiver stamps the time."""


class Occupancy(NamedTuple):
    """Blocks by state; the three add up to the pool's size.

    ``cached`` blocks are free but could still be hit by a shared prefix. This pool
    keeps no prefixes: it is always 0 here.
    """

    free: int
    cached: int
    live: int


class BlockPool:
    """The blocks of one cache, each free or owned by one sequence."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._owner: list[int | None] = [None] * num_blocks

    def occupancy(self) -> Occupancy:
        live = sum(owner is not None for owner in self._owner)
        return Occupancy(free=self.num_blocks - live, cached=0, live=live)

    def owner(self, block: int) -> int | None:
        return self._owner[block]

    def take(self, owner: int, count: int, *, neighbours: bool) -> list[int]:
        """``count`` blocks for ``owner``, the lowest free ones; ``neighbours``: side by side.

        Raises:
            PoolExhaustedError: not enough free blocks, or no run that long. Nothing is taken.
        """
        free = [block for block, held_by in enumerate(self._owner) if held_by is None]
        taken = _first_run(free, count) if neighbours else free[:count]
        if len(taken) < count:
            side_by_side = " side by side" if neighbours else ""
            raise PoolExhaustedError(
                f"{count} cache blocks{side_by_side} are needed and {len(free)} of {self.num_blocks} are free. "
                "Use a shorter prompt or fewer max_tokens, raise num_blocks, or wait for another run to end."
            )
        for block in taken:
            self._owner[block] = owner
        return taken

    def give_back(self, block: int, owner: int) -> None:
        if self._owner[block] != owner:
            raise AssertionError(f"block {block} belongs to {self._owner[block]}, not to {owner}")
        self._owner[block] = None


def _first_run(free: list[int], count: int) -> list[int]:
    """The first ``count`` consecutive numbers in the ascending list ``free``, or []."""
    start = 0
    for end in range(len(free)):
        if free[end] - free[start] != end - start:
            start = end
        if end - start + 1 == count:
            return free[start : end + 1]
    return []


class BlockTable:
    """The blocks of one sequence, in the order of its positions."""

    def __init__(self, pool: BlockPool, owner: int, emit: Emit, *, paged: bool) -> None:
        self.pool = pool
        self.owner = owner
        self.paged = paged
        self.blocks: list[int] = []
        self.length = 0  # tokens whose keys and values are wanted
        self._emit = emit

    @property
    def capacity(self) -> int:
        return len(self.blocks) * self.pool.block_size

    def reserve(self, tokens: int) -> None:
        """Own enough blocks for ``tokens`` positions.

        Raises:
            PoolExhaustedError: the pool has too few. The table is unchanged.
        """
        missing = -(-tokens // self.pool.block_size) - len(self.blocks)
        if missing <= 0:
            return
        if not self.paged and self.blocks:
            raise AssertionError("a contiguous table is reserved once, whole")
        for block in self.pool.take(self.owner, missing, neighbours=not self.paged):
            self._emit(BlockAllocated, block=block, owner=self.owner, index=len(self.blocks), fill=0)
            self.blocks.append(block)

    def roll_back(self, length: int) -> None:
        """Only the first ``length`` positions are wanted now. Paged: give whole blocks back.

        Nothing is erased: the next write covers what the stale slots hold.
        """
        self.length = length
        if self.paged:
            self._free_from(-(-length // self.pool.block_size))

    def release(self) -> None:
        """Give every block back. May be called twice."""
        self._free_from(0)
        self.length = 0

    def _free_from(self, index: int) -> None:
        while len(self.blocks) > index:
            block = self.blocks.pop()
            fill = min(self.pool.block_size, max(0, self.length - self.capacity))
            self.pool.give_back(block, self.owner)
            self._emit(BlockFreed, block=block, owner=self.owner, index=len(self.blocks), fill=fill)
