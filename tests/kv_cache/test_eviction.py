"""Which cached block goes first when room is needed."""

from __future__ import annotations

import pytest

from lab.kv_cache.block_pool import BlockPool
from lab.kv_cache.block_table import BlockTable
from lab.trace.events import BlockEvicted
from tests.kv_cache.test_blocks import ROOT, ignore, leave_behind


def evicted(pool: BlockPool, count: int) -> list[int]:
    gone: list[int] = []
    pool.allocate(count, lambda event, **fields: gone.append(fields["block"]) if event is BlockEvicted else None)
    return gone


def test_free_blocks_go_before_cached_ones_and_a_tail_before_its_prefix():
    pool = BlockPool(num_blocks=6, block_size=2)
    old = leave_behind(pool, 0, [1, 1, 2, 2, 3])  # two full blocks and a partial one
    new = leave_behind(pool, 1, [5, 5, 6, 6])
    assert pool.occupancy() == (2, 4, 0)
    assert evicted(pool, 2) == []  # the free ones first
    assert evicted(pool, 3) == [old[1], old[0], new[1]]


def test_adopting_a_block_makes_it_recent():
    pool = BlockPool(num_blocks=4, block_size=2)
    first, second = leave_behind(pool, 0, [1, 1, 2, 2]), leave_behind(pool, 1, [3, 3, 4, 4])
    table = BlockTable(pool, 2, ignore, paged=True)
    table.attach_cached_blocks(pool.find_cached_prefix([1, 1, 2, 2, 9], ROOT), 0)
    table.release()
    assert evicted(pool, 4) == [second[1], second[0], first[1], first[0]]


def test_priority_outranks_recency():
    orders = {}
    for eviction in ("lru", "priority"):
        pool = BlockPool(num_blocks=4, block_size=2, eviction=eviction)
        pinned, passing = leave_behind(pool, 0, [1, 1, 2, 2], priority=9), leave_behind(pool, 1, [3, 3, 4, 4])
        orders[eviction] = (evicted(pool, 2), pinned, passing)
    gone, pinned, _ = orders["lru"]
    assert gone == [pinned[1], pinned[0]]
    gone, _, passing = orders["priority"]
    assert gone == [passing[1], passing[0]]


def test_lru_eviction_ignores_the_priority_of_adopters():
    pool = BlockPool(num_blocks=4, block_size=2)
    blocks = leave_behind(pool, 0, [1, 1]) + leave_behind(pool, 1, [3, 3])
    for owner, tokens, priority in ((2, [1, 1, 9], 9), (3, [3, 3, 9], 0)):
        table = BlockTable(pool, owner, ignore, paged=True)
        table.attach_cached_blocks(pool.find_cached_prefix(tokens, ROOT), priority)
        table.release()
    assert evicted(pool, 4) == blocks


def test_adopting_a_block_raises_its_priority_and_finding_it_does_not():
    pool = BlockPool(num_blocks=4, block_size=2, eviction="priority")
    first, second = leave_behind(pool, 0, [1, 1]), leave_behind(pool, 1, [3, 3])
    pool.find_cached_prefix([1, 1, 9], ROOT)  # for a request that may not be admitted
    assert evicted(pool, 3)[0] == first[0]
    pool = BlockPool(num_blocks=4, block_size=2, eviction="priority")
    first, second = leave_behind(pool, 0, [1, 1]), leave_behind(pool, 1, [3, 3])
    for owner, tokens, priority in ((2, [1, 1, 9], 9), (3, [3, 3, 9], 0)):  # the second is then the more recent one
        table = BlockTable(pool, owner, ignore, paged=True)
        table.attach_cached_blocks(pool.find_cached_prefix(tokens, ROOT), priority)
        table.release()
    assert evicted(pool, 4)[:2] == [second[0], first[0]]


@pytest.mark.parametrize("live", [True, False])
def test_storing_a_prefix_again_raises_the_priority_of_the_block_that_holds_it(live):
    """Two sequences that computed the same text at once: only the first one's block can be found."""
    pool = BlockPool(num_blocks=4, block_size=2, eviction="priority")
    held, again = (BlockTable(pool, owner, ignore, paged=True) for owner in (0, 1))
    for table, tokens in ((held, [1, 1]), (again, [1, 1, 2, 2])):
        table.allocate_slots(len(tokens))
        table.roll_back(len(tokens))
    held.cache_full_blocks([1, 1], 2, ROOT, 0)
    ((block, _),) = pool.find_cached_prefix([1, 1, 9], ROOT)
    if not live:
        held.release()
    again.cache_full_blocks([1, 1, 2, 2], 4, ROOT, 9)
    again.release()
    if live:
        held.release()
    (passing,) = leave_behind(pool, 2, [3, 3], priority=5)
    assert evicted(pool, 2) == [passing]  # after the free one
    found = pool.find_cached_prefix([1, 1, 2, 2, 9], ROOT)
    assert len(found) == 2
    assert found[0][0] == block


@pytest.mark.parametrize("eviction", ["lru", "priority"])
def test_storing_a_prefix_again_does_not_make_the_block_that_holds_it_recent(eviction):
    """Unless that gives it a higher priority."""
    pool = BlockPool(num_blocks=4, block_size=2, eviction=eviction)
    held, again = (BlockTable(pool, owner, ignore, paged=True) for owner in (0, 1))
    for table in (held, again):
        table.allocate_slots(2)
        table.roll_back(2)
    held.cache_full_blocks([1, 1], 2, ROOT, 5)
    (first,) = held.blocks
    held.release()
    (second,) = leave_behind(pool, 2, [3, 3], priority=5)
    again.cache_full_blocks([1, 1], 2, ROOT, 5)
    again.release()
    assert evicted(pool, 4) == [first, second]  # after the free ones


def test_eviction_does_not_scan_all_cached_blocks():
    """With many blocks and few priorities, only the priorities are compared."""
    compared = []

    class Priority(int):
        def __lt__(self, other):
            compared.append(other)
            return int(self) < int(other)

    pool = BlockPool(num_blocks=300, block_size=2, eviction="priority")
    for owner in range(300):
        leave_behind(pool, owner, [owner, owner], Priority(owner % 3))
    compared.clear()
    assert evicted(pool, 150) == [*range(0, 300, 3), *range(1, 150, 3)]
    assert len(compared) <= 150 * 3
