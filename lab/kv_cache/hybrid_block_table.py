"""Block tables of models with sliding windows: blocks that slid out are freed; each group has a table of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from lab.kv_cache.block_pool import BlockPool, CachedBlocks, Emit
from lab.kv_cache.block_table import BlockTable, CopyBlock
from lab.kv_cache.kept_states import has_state
from lab.kv_cache.kv_cache_groups import ONE_GROUP, FullAttentionSpec, SlidingWindowSpec
from lab.kv_cache.prefix_cache import Prefix


class SlidingWindowTable(BlockTable):
    """A paged table that frees its blocks, the first ones first, when no token to come sees theirs.

    ``blocks`` keeps its indices: an entry that was freed is -1.
    """

    def __init__(self, pool: BlockPool, owner: int, emit: Emit, spec: SlidingWindowSpec, **how: object) -> None:
        super().__init__(pool, owner, emit, **how)
        self._spec = spec

    def allocate_slots(self, tokens: int) -> None:
        # Only now, when the full blocks of the last step can be found by their prefix.
        for index in range(self.skipped, self._spec.num_skipped(self.length) // self.pool.block_size):
            self._free_block(index, slid_out=True)
            self.blocks[index] = -1
            self.skipped = index + 1
        super().allocate_slots(tokens)

    def holds(self, length: int) -> bool:
        return self.skipped * self.pool.block_size <= self._spec.num_skipped(length)


class HybridBlockTable(BlockTable):
    """The tables of one sequence, one a group: this one is the first group's, and ``others`` go along with it."""

    def __init__(self, pool: BlockPool, owner: int, emit: Emit, others: list[BlockTable], **how: object) -> None:
        super().__init__(pool, owner, emit, **how)
        self.others = others

    def of_group(self, group: int) -> BlockTable:
        return self.others[group - 1] if group else self

    @property
    def num_slots(self) -> int:
        return super().num_slots + sum(table.num_slots for table in self.others)

    @property
    def num_used(self) -> int:
        return super().num_used + sum(table.num_used for table in self.others)

    def allocate_slots(self, tokens: int) -> None:
        """As of one table. If the pool has too few blocks, those that were found are kept for the next try."""
        for table in self.others:  # windows first: they may give blocks back
            table.allocate_slots(tokens)
        super().allocate_slots(tokens)

    def attach_cached_blocks(self, found: list[CachedBlocks], priority: int) -> None:
        super().attach_cached_blocks(found, priority)
        for table in self.others:
            table.attach_cached_blocks(found, priority)

    def holds(self, length: int) -> bool:
        return super().holds(length) and all(table.holds(length) for table in self.others)

    def fork_from(self, other: HybridBlockTable, length: int) -> None:
        super().fork_from(other, length)
        for table, its in zip(self.others, other.others, strict=True):
            table.fork_from(its, length)

    def cache_full_blocks(self, tokens: Sequence[int], length: int, root: Prefix, priority: int) -> None:
        super().cache_full_blocks(tokens, length, root, priority)
        for table in self.others:
            table.cache_full_blocks(tokens, length, group_root(root, table.group), priority)

    def roll_back(self, length: int, behind: int = 0) -> None:
        super().roll_back(length, behind)
        for table in self.others:
            table.roll_back(length, behind)

    def release(self) -> None:
        super().release()
        for table in self.others:
            table.release()


def new_table(pool: BlockPool, owner: int, emit: Emit, *, paged: bool, copy: CopyBlock) -> BlockTable:
    """A sequence's table, with one for each further group of the pool."""
    tables = [_table(one.spec, pool, owner, emit, group=i, paged=paged, copy=copy) for i, one in enumerate(pool.groups)]
    if len(tables) == 1:
        return tables[0]
    return HybridBlockTable(pool, owner, emit, tables[1:], paged=paged, copy=copy)


def _table(
    spec: FullAttentionSpec | SlidingWindowSpec, pool: BlockPool, owner: int, emit: Emit, **how: object
) -> BlockTable:
    if isinstance(spec, SlidingWindowSpec):
        return SlidingWindowTable(pool, owner, emit, spec, **how)
    return BlockTable(pool, owner, emit, **how)


def find_cached_blocks(
    pool: BlockPool, tokens: Sequence[int], root: Prefix, *, with_state: bool = False, behind: int = 0
) -> list[CachedBlocks]:
    """The blocks of each group that hold the beginning of ``tokens``, as far as all groups have what the next token
    sees: a group with a window needs the blocks within it alone. Empty: none. Otherwise as
    ``BlockPool.find_cached_prefix``."""
    if pool.groups == ONE_GROUP:
        found = pool.find_cached_prefix(tokens, root, with_state=with_state, behind=behind)
        return [found] if found else []
    size, chains = pool.block_size, []
    for group in range(len(pool.groups)):
        prefix, chain = group_root(root, group), []
        for end in range(size, len(tokens), size):
            prefix = prefix.then(tokens[end - size : end])
            block = pool.find(prefix)
            prefix = prefix if block is None else pool.prefix(block)
            chain.append((block, prefix))
        chains.append(chain)
    runs = [list(accumulate(chain, _run, initial=0)) for chain in chains]  # of blocks there, up to each
    for length in range(len(chains[0]), 0, -1):
        # A drafter may have the last token computed again, or the last block.
        skipped = [group.spec.num_skipped(length * size - max(1, behind * size)) // size for group in pool.groups]
        there = all(run[length] >= length - first for run, first in zip(runs, skipped, strict=True))
        if there and (not with_state or has_state(chains[0][:length], behind)):
            return [
                [(block if i >= first else None, prefix) for i, (block, prefix) in enumerate(chain[:length])]
                for chain, first in zip(chains, skipped, strict=True)
            ]
    return []


def _run(run: int, one: tuple[int | None, Prefix]) -> int:
    return 0 if one[0] is None else run + 1


def group_root(root: Prefix, group: int) -> Prefix:
    """The beginning of a group's chains of prefixes: each group has the same tokens in a block of its own."""
    return Prefix((f"group {group}",), root) if group else root
