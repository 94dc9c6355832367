"""The block pool: free, cached and live blocks of a cache.

A block is ``block_size`` slots; a slot holds the keys and values of one token position, in every layer (PagedAttention:
Kwon et al., 2309.06180, section 4.1).

A block is **live** while it is in a sequence's table, **cached** when it is in none but its prefix can still be found,
and **free** otherwise. Several tables may share a block; each of them counts as a reference.

Lesson 5, paged blocks.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from lab.config import HIGHEST_PRIORITY
from lab.errors import PoolExhaustedError
from lab.kv_cache.kept_states import KeptStates, has_state
from lab.kv_cache.kv_cache_groups import ONE_GROUP, KVCacheGroup
from lab.kv_cache.prefix_cache import Prefix, PrefixIndex
from lab.trace.events import BlockEvicted
from lab.util.messages import counted

Emit = Callable[..., None]
"""Called as ``emit(EventType, **fields)``; the receiver stamps the time."""

CachedBlocks = list[tuple[int | None, Prefix]]
"""Blocks that hold the beginning of a text, in order, with their prefixes. None: no later token sees it."""

Eviction = Literal["lru", "priority"]


class Occupancy(NamedTuple):
    """Blocks by state; the three add up to the pool's size."""

    free: int
    cached: int
    live: int


class BlockPool:
    """The blocks of one cache: their references, which prefixes they hold, and ``states`` that are kept with those.

    ``eviction`` says which cached block is given up when no free one is left. "lru": the least
    recently used. "priority": the least recently used of the lowest priority. ``groups``: a block holds one's layers.
    ``max_states``: most recurrent states kept with prefixes.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        eviction: Eviction = "lru",
        groups: tuple[KVCacheGroup, ...] = ONE_GROUP,
        max_states: int = 0,
    ) -> None:
        self.groups = groups
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._by_priority = eviction == "priority"
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks))  # ascending
        self._prefixes = PrefixIndex()
        self.states = KeptStates(max_states)
        self._priority: dict[int, int] = {}  # of stored blocks; always 0 with "lru"
        # One per priority, the least recently used block first. (An OrderedDict has its first key at hand; a dict
        # searches for it behind all that were removed before.)
        self._cached: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(HIGHEST_PRIORITY + 1)]

    def occupancy(self) -> Occupancy:
        free, cached = len(self._free), self._count_cached()
        return Occupancy(free, cached, self.num_blocks - free - cached)

    @property
    def available(self) -> int:
        return len(self._free) + self._count_cached()

    def has_contiguous(self, count: int) -> bool:
        return _first_contiguous(self._free, count) is not None

    def references(self, block: int) -> int:
        return self._references[block]

    def holds_prefix(self, block: int) -> bool:
        """True if its prefix can be found: then it must not be written to."""
        return block in self._prefixes

    def prefix(self, block: int) -> Prefix:
        return self._prefixes.prefix(block)

    def live_blocks(self) -> list[int]:
        return [block for block, count in enumerate(self._references) if count]

    def cached_blocks(self) -> list[int]:
        """In the order in which they would be evicted, the next one first."""
        return [block for blocks in self._cached for block in blocks]

    # -- allocating and freeing --------------------------------------------------------------

    def allocate(self, count: int, emit: Emit, *, contiguous: bool = False) -> list[int]:
        """Allocate ``count`` blocks with one reference each: the lowest free ones, then cached ones by eviction policy.

        ``contiguous``: take free ones only, side by side.

        Raises:
            PoolExhaustedError: not enough blocks, or no run that long. Nothing is taken.
        """
        start = _first_contiguous(self._free, count) if contiguous else 0
        available = len(self._free) if contiguous else self.available
        if start is None or available < count:
            blocks = f"{counted(count, 'cache block')}{' side by side' * contiguous} {'is' if count == 1 else 'are'}"
            raise PoolExhaustedError(
                f"{blocks} needed and {available} of {self.num_blocks} are free. "
                "Use a shorter prompt, fewer tokens (max_tokens) or a larger pool (num_blocks), or wait for another "
                "run to end."
            )
        taken = self._free[start : start + count]
        del self._free[start : start + count]
        while len(taken) < count:
            taken.append(self._evict(emit))
        for block in taken:
            self._references[block] = 1
        return taken

    def share(self, block: int, priority: int = 0) -> int:
        """Add a reference to a live or cached block; returns how many it then has.

        ``priority``: that of the sequence that takes it. A stored block keeps the highest.
        """
        if block in self._prefixes:
            self._raise(block, priority)
        elif not self._references[block]:
            raise AssertionError(f"block {block} is free: there is nothing in it to share")
        if not self._references[block]:
            del self._cached[self._priority[block]][block]
        self._references[block] += 1
        return self._references[block]

    def free(self, block: int) -> int:
        """Drop a reference; returns how many are left. With none left the block is cached or free."""
        if not self._references[block]:
            raise AssertionError(f"block {block} is freed, and no table has it")
        self._references[block] -= 1
        if not self._references[block]:
            if block in self._prefixes:
                self._cached[self._priority[block]][block] = None
            else:
                insort(self._free, block)
        return self._references[block]

    # -- prefixes ----------------------------------------------------------------------------

    def cache_full_block(self, block: int, prefix: Prefix, priority: int = 0) -> bool:
        """Make a full live block findable by its prefix.

        False if another block holds that prefix already: then that one gets ``priority``, if it is the higher one.
        """
        added = self._prefixes.add(block, prefix)
        if added:
            self._priority[block] = priority if self._by_priority else 0
        elif self._by_priority:
            held = self._prefixes.find(prefix)
            if held is not None:  # None: only the digests are equal
                self._raise(held, priority)
        return added

    def find_cached_prefix(
        self, tokens: Sequence[int], root: Prefix, *, with_state: bool = False, behind: int = 0
    ) -> CachedBlocks:
        """The stored blocks that hold the beginning of ``tokens``, with their prefixes. ``with_state``: those up to the
        last one after which a recurrent state is kept, and ``behind`` more.

        At least one token is left over: computing it gives the next token's logits.
        """
        found, prefix, size = [], root, self.block_size
        for end in range(size, len(tokens), size):
            prefix = prefix.then(tokens[end - size : end])
            block = self._prefixes.find(prefix)
            if block is None:
                break
            prefix = self.prefix(block)  # the index's own chain, so that the next comparison stops here
            found.append((block, prefix))
        while with_state and found and not has_state(found, behind):
            found.pop()
        return found

    def find(self, prefix: Prefix) -> int | None:
        """The block that holds a prefix."""
        return self._prefixes.find(prefix)

    def stored(self, prefix: Prefix) -> Prefix | None:
        """The index's own object for a prefix that can be found; None if it cannot."""
        block = self.find(prefix)
        return None if block is None else self.prefix(block)

    def _raise(self, block: int, priority: int) -> None:
        """Give a stored block ``priority``, if that is higher than its own."""
        own = self._priority[block]
        if not self._by_priority or priority <= own:
            return
        self._priority[block] = priority
        if not self._references[block]:
            del self._cached[own][block]
            self._cached[priority][block] = None

    def _count_cached(self) -> int:
        return sum(map(len, self._cached))

    def _evict(self, emit: Emit) -> int:
        block, _ = next(filter(None, self._cached)).popitem(last=False)
        del self._priority[block]
        self.states.drop(self.prefix(block))
        self._prefixes.remove(block)
        emit(BlockEvicted, block=block)
        return block


def _first_contiguous(free: list[int], count: int) -> int | None:
    """The index of ``count`` consecutive numbers in the ascending list ``free``."""
    start = 0
    for end in range(len(free)):
        if free[end] - free[start] != end - start:
            start = end
        if end - start + 1 == count:
            return start
    return None
