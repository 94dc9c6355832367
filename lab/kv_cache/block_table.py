"""The block table of one sequence.

A table maps position to slot:
``slot = table[position // block_size] * block_size + position % block_size``.

Two policies share this addressing, so they can be compared fairly: *contiguous* allocates a run of contiguous blocks,
when a sequence starts, for all the tokens it may ever have; *paged* takes any block when one is needed and frees blocks
as soon as they hold nothing that is needed.

A paged table may begin with blocks that other tables share. Before it writes into one of those it makes a copy of its
own (copy on write: Kwon et al., 2309.06180, section 4.4).

Lesson 5, paged blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from lab.kv_cache.block_pool import BlockPool, CachedBlocks, Emit
from lab.kv_cache.prefix_cache import Prefix
from lab.trace.events import BlockAllocated, BlockCopied, BlockFreed, BlockShared, BlockStored

CopyBlock = Callable[[int, int], None]
"""Called as ``copy(source, destination)``: copies all slots of a block, in every storage."""


class BlockTable:
    """The blocks of one sequence, in the order of its positions.

    Attributes:
        blocks: contiguous int32, so that a step copies them as a whole instead of going through them one by one.
        length: how many tokens' keys and values are in use.
        emit: reports what becomes of them.
        group: whose layers these are (``lab.kv_cache.kv_cache_groups``).
        skipped: how many of the first blocks are freed, since no later token sees them: those entries are -1.
        state: of recurrent layers, kept with the prefix that it begins with. None: there is none.
        states_behind: how many blocks before the last full one the state is to be kept for whoever goes on from there.
    """

    skipped = 0
    state: object = None
    states_behind = 0

    def __init__(
        self, pool: BlockPool, owner: int, emit: Emit, *, paged: bool, copy: CopyBlock | None = None, group: int = 0
    ) -> None:
        self.pool = pool
        self.owner = owner
        self.paged = paged
        self.group = group
        self.blocks = array("i")
        self.length = 0
        self.emit = emit
        self._copy = copy
        self._prefixes: list[Prefix] = []  # of the blocks known to be full, from the first on

    @property
    def capacity(self) -> int:
        """The number of positions that its blocks have slots for."""
        return len(self.blocks) * self.pool.block_size

    @property
    def num_slots(self) -> int:
        return self.capacity - self.skipped * self.pool.block_size

    @property
    def num_used(self) -> int:
        return self.length - self.skipped * self.pool.block_size

    def missing(self, tokens: int) -> int:
        """The number of blocks to allocate before ``tokens`` positions can be written, a copy of the tail included."""
        more = max(0, -(-tokens // self.pool.block_size) - len(self.blocks))
        return more + (tokens > self.length and self._tail_is_shared())

    def allocate_slots(self, tokens: int) -> None:
        """Allocate enough blocks for ``tokens`` positions, writable from ``length`` on.

        Raises:
            PoolExhaustedError: the pool has too few. The table is unchanged.
        """
        missing = self.missing(tokens)
        if not missing:
            return
        if not self.paged and self.blocks:
            raise AssertionError("a contiguous table is reserved once, whole")
        taken = self.pool.allocate(missing, self.emit, contiguous=not self.paged)
        if self._tail_is_shared():
            try:
                self._copy_tail(taken[0])
            except Exception:  # out of memory, most likely
                for block in taken:
                    self.pool.free(block)
                raise
            del taken[0]
        for block in taken:
            self._append(BlockAllocated, block, fill=0)

    def _tail_is_shared(self) -> bool:
        """True if the block that ``length`` points into is shared or findable, so that it must not be written to."""
        index = self.length // self.pool.block_size
        if index >= len(self.blocks):
            return False
        block = self.blocks[index]
        return self.pool.references(block) > 1 or self.pool.holds_prefix(block)

    def _copy_tail(self, fresh: int) -> None:
        index, fill = divmod(self.length, self.pool.block_size)
        shared = self.blocks[index]
        self._copy(shared, fresh)
        self._free_block(index)
        self.blocks[index] = fresh
        self._report(BlockCopied, fresh, index, fill=fill, source=shared)

    # -- sharing -----------------------------------------------------------------------------

    def attach_cached_blocks(self, found: Sequence[CachedBlocks], priority: int) -> None:
        """Begin with full blocks that were found by their prefix, ``found`` for each group, for a sequence of this
        ``priority``."""
        for block, prefix in found[self.group]:
            self._prefixes.append(prefix)
            if block is None:
                self._skip()
            else:
                references = self.pool.share(block, priority)
                self._append(BlockShared, block, fill=self.pool.block_size, references=references)
        self.length = self.capacity

    def holds(self, length: int) -> bool:
        """True if it still has what a token at position ``length`` sees."""
        return True

    def fork_from(self, other: BlockTable, length: int) -> None:
        """Begin with the first ``length`` positions of another sequence; the tail is copied at the first write."""
        size = self.pool.block_size
        for index, block in enumerate(other.blocks[: -(-length // size)]):
            fill = min(size, length - index * size)
            if block < 0:
                self._skip()
            else:
                self._append(BlockShared, block, fill=fill, references=self.pool.share(block))
        self._prefixes = other._prefixes[: length // size]
        self.length = length

    def cache_full_blocks(self, tokens: Sequence[int], length: int, root: Prefix, priority: int) -> None:
        """Make every block findable that the first ``length`` of ``tokens`` fill."""
        size = self.pool.block_size
        for index in range(len(self._prefixes), length // size):
            parent = self._prefixes[-1] if self._prefixes else root
            prefix = parent.then(tokens[index * size : (index + 1) * size])
            self._prefixes.append(prefix)
            if index >= self.skipped and self.pool.cache_full_block(self.blocks[index], prefix, priority):
                self._report(BlockStored, self.blocks[index], index)

    def prefix(self, length: int) -> Prefix | None:
        """The prefix of the first ``length`` tokens, which fill whole blocks, if it can be found."""
        full = length // self.pool.block_size
        return self.pool.stored(self._prefixes[full - 1]) if 0 < full <= len(self._prefixes) else None

    # -- freeing ----------------------------------------------------------------------------

    def roll_back(self, length: int, behind: int = 0) -> None:
        """Set how many positions are in use. Paged: free the blocks after them and ``behind`` more.

        Nothing is erased: the next write overwrites what the stale slots hold.
        """
        self.length = length
        del self._prefixes[length // self.pool.block_size :]
        if self.paged:
            self._free_from(-(-(length + behind) // self.pool.block_size))

    def release(self) -> None:
        """Free every block, the last one first: it is then evicted first, and a beginning is of more use."""
        self._free_from(0)
        self._prefixes.clear()
        self.length = 0

    def _report(self, event: type, block: int, index: int, **fields: int) -> None:
        self.emit(event, block=block, owner=self.owner, index=index, group=self.group, **fields)

    def _append(self, event: type, block: int, **fields: int) -> None:
        self._report(event, block, len(self.blocks), **fields)
        self.blocks.append(block)

    def _skip(self) -> None:
        self.blocks.append(-1)
        self.skipped = len(self.blocks)

    def _free_from(self, index: int) -> None:
        while len(self.blocks) > max(index, self.skipped):
            self._free_block(len(self.blocks) - 1)
            self.blocks.pop()
        del self.blocks[index:]
        self.skipped = min(self.skipped, index)

    def _free_block(self, index: int, **why: bool) -> None:
        block, size = self.blocks[index], self.pool.block_size
        fill = min(size, max(0, self.length - index * size))
        references = self.pool.free(block)
        cached = not references and self.pool.holds_prefix(block)
        self._report(BlockFreed, block, index, fill=fill, references=references, cached=cached, **why)
