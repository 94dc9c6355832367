"""Block accounting under random use: sharing, copying, caching, eviction, rollback."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from lab.errors import PoolExhaustedError
from lab.kv_cache import prefix_cache as prefix_module
from lab.kv_cache.attention_metadata import side_by_side
from lab.kv_cache.block_pool import BlockPool
from lab.kv_cache.block_table import BlockTable
from lab.kv_cache.prefix_cache import Prefix
from lab.trace.events import BlockAllocated, BlockCopied, BlockEvicted, BlockFreed, BlockShared, BlockStored

ROOT = Prefix.root("weights")
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)  # few kinds of tokens: prefixes are often shared


class Owner:
    """As much of a sequence as blocks depend on: its tokens, and a table for them."""

    def __init__(self, table: BlockTable, tokens: list[int], priority: int, stored: bool) -> None:
        self.table = table
        self.tokens = tokens
        self.priority = priority
        self.stored = stored  # whether others may find its blocks


class PoolMachine(RuleBasedStateMachine):
    """Sequences start, share, grow, roll back and end, contiguous and paged ones in one pool.

    The contents of a slot are modelled by all tokens up to it, as keys and values depend on all of them.
    """

    owners = Bundle("owners")

    @initialize(eviction=st.sampled_from(["lru", "priority"]), collide=st.booleans())
    def begin(self, eviction, collide):
        self.size = 2
        self.pool = BlockPool(num_blocks=12, block_size=self.size, eviction=eviction)
        self.slots: dict[int, tuple[int, ...]] = {}
        self.open: list[Owner] = []
        self.tables: dict[int, list[int]] = {}  # rebuilt from events alone
        self.by_owner: dict[int, BlockTable] = {}
        self.shared: dict[int, int] = {}  # by owner: how many of its tokens shared blocks held, by the events
        self.priorities: dict[int, int] = {}  # by owner
        self.cached: dict[int, None] = {}  # cached blocks by the events, in the order in which they were freed
        self.priority: dict[int, int] = {}  # of stored blocks: the highest of those who stored or shared them
        self.by_priority = eviction == "priority"
        self.digest, self.started = prefix_module.digest, 0
        if collide:  # hashes that collide nearly always: only comparing tokens keeps prefixes apart
            prefix_module.digest = lambda parent, tokens: len(tokens)

    def teardown(self):
        prefix_module.digest = self.digest

    def emit(self, event_type, **fields):
        block, owner = fields["block"], fields.get("owner")
        if event_type is BlockShared:
            self.shared[owner] += fields["fill"]
            assert 0 < fields["fill"] <= self.size
        elif "fill" in fields:
            assert fields["fill"] == min(max(0, self.by_owner[owner].length - fields["index"] * self.size), self.size)
        if event_type is BlockEvicted:
            # The plain definition of what is evicted: min() returns the first of equals.
            first = min(self.cached, key=self.priority.__getitem__) if self.by_priority else next(iter(self.cached))
            assert block == first
            del self.cached[block], self.priority[block]
        elif event_type is BlockStored:
            assert self.tables[owner][fields["index"]] == block
            self.priority[block] = self.priorities[owner]
        elif event_type is BlockFreed:
            assert self.tables[owner].pop(fields["index"]) == block
            others = sum(block in table for table in self.tables.values())
            assert fields["references"] == others
            if fields["cached"]:
                assert not others
                self.cached[block] = None
        else:
            owners = sum(block in table for table in self.tables.values())
            if event_type is BlockShared:
                assert owners or block in self.cached
                assert fields["references"] == owners + 1
                self.cached.pop(block, None)
                if block in self.priority:
                    self.priority[block] = max(self.priority[block], self.priorities[owner])
            else:
                assert event_type in (BlockAllocated, BlockCopied)
                assert not owners
                assert block not in self.cached
            self.tables[owner].insert(fields["index"], block)

    def copy(self, source, destination):
        for i in range(self.size):
            self.slots[destination * self.size + i] = self.slots.get(source * self.size + i, ())

    def write(self, owner: Owner, upto: int) -> None:
        """What a forward pass does: fill the slots from the table's length on, then keep them."""
        table, before = owner.table, owner.table.length
        for position in range(before, upto):
            block = table.blocks[position // self.size]
            assert self.pool.references(block) == 1
            assert not self.pool.holds_prefix(block)
            self.slots[block * self.size + position % self.size] = tuple(owner.tokens[: position + 1])
        table.roll_back(upto)
        if table.paged and owner.stored:
            table.cache_full_blocks(owner.tokens, upto, ROOT, owner.priority)
            for end in range((before // self.size + 1) * self.size, upto + 1, self.size):
                self.store_again(tuple(owner.tokens[:end]), owner.priority)

    def store_again(self, text: tuple[int, ...], priority: int) -> None:
        """The block that is found for the end of ``text`` gets the priority of another that would be stored."""
        for block, own in self.priority.items():
            if self.slots[(block + 1) * self.size - 1] == text and priority > own:
                self.priority[block] = priority
                if self.by_priority and block in self.cached:  # among its new equals it is the most recent one
                    del self.cached[block]
                    self.cached[block] = None

    def new_table(self, paged: bool, priority: int) -> BlockTable:
        self.started += 1
        self.tables[self.started], self.priorities[self.started], self.shared[self.started] = [], priority, 0
        table = BlockTable(self.pool, self.started, self.emit, paged=paged, copy=self.copy)
        self.by_owner[self.started] = table
        return table

    # -- what sequences do ------------------------------------------------------------------------

    @rule(target=owners, paged=st.sampled_from([True, True, False]), tokens=TOKENS, priority=st.integers(0, 2))
    def start(self, paged, tokens, priority):
        table = self.new_table(paged, priority)
        owner = Owner(table, tokens, priority, stored=bool(priority))
        if paged:
            found = self.pool.find_cached_prefix(tokens, ROOT)
            assert len(found) * self.size < len(tokens)  # at least one token is always computed
            table.attach_cached_blocks([found], priority)
        before = table.length
        assert self.shared[table.owner] == before
        try:
            table.allocate_slots(len(tokens))
        except PoolExhaustedError:
            assert len(table.blocks) * self.size == before
            owner.tokens = tokens[:before]
        else:
            self.write(owner, len(tokens))
        self.open.append(owner)
        return owner

    @rule(target=owners, leader=owners, data=st.data())
    def continue_alike(self, leader, data):
        """Another continuation of the same prefix."""
        table = self.new_table(True, leader.priority)
        length = data.draw(st.integers(0, leader.table.length)) if leader.table.paged else 0
        table.fork_from(leader.table, length)
        assert self.shared[table.owner] == table.length == length
        owner = Owner(table, leader.tokens[:length], leader.priority, leader.stored)
        self.open.append(owner)
        return owner

    @rule(owner=owners, more=TOKENS, data=st.data())
    def go_back_and_on(self, owner, more, data):
        self.roll_back(owner, data)
        self.grow(owner, more)

    @rule(owner=owners, more=TOKENS)
    def grow(self, owner, more):
        table, before = owner.table, owner.table.blocks[:]
        if not table.paged:
            more = more[: table.capacity - table.length]
        try:
            table.allocate_slots(table.length + len(more))
        except PoolExhaustedError:
            assert table.blocks == before
        else:
            owner.tokens = owner.tokens[: table.length] + more
            self.write(owner, len(owner.tokens))

    @rule(owner=owners, data=st.data())
    def roll_back(self, owner, data):
        owner.table.roll_back(data.draw(st.integers(0, owner.table.length)))
        owner.tokens = owner.tokens[: owner.table.length]

    @rule(owner=consumes(owners), twice=st.booleans())
    def release(self, owner, twice):
        owner.table.release()
        if twice:
            owner.table.release()
        self.open.remove(owner)
        assert len(owner.table.blocks) == 0

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def references_are_counted(self):
        for block in range(self.pool.num_blocks):
            held = sum(owner.table.blocks.count(block) for owner in self.open)
            assert self.pool.references(block) == held
        for owner in self.open:
            assert self.tables[owner.table.owner] == list(owner.table.blocks)

    @invariant()
    def states_add_up(self):
        state = self.pool.occupancy()
        assert sum(state) == self.pool.num_blocks
        assert state.live == len({block for owner in self.open for block in owner.table.blocks})
        assert sorted(self.pool.cached_blocks()) == sorted(self.cached)
        assert self.cached.keys().isdisjoint(self.pool.live_blocks())

    @invariant()
    def tables_hold_enough_and_no_more(self):
        for owner in self.open:
            table = owner.table
            assert table.length <= table.capacity
            assert table.missing(table.length) == 0  # nothing is copied before it is written to
            if table.paged:
                assert table.capacity - table.length < self.size
            else:
                first = table.blocks[0] if table.blocks else 0
                assert list(table.blocks) == list(range(first, first + len(table.blocks)))

    @invariant()
    def steps_are_told_the_tables_that_the_events_tell(self):
        longest = max((len(table) for table in self.tables.values()), default=0)
        for height in (1, max(1, longest), longest + 2):
            rows = [(self.tables[owner.table.owner] + [0] * height)[:height] for owner in self.open]
            reported = side_by_side([owner.table.blocks for owner in self.open], height)
            assert list(reported) == [block for row in rows for block in row]

    @invariant()
    def nobody_reads_what_another_wrote(self):
        for owner in self.open:
            for position in range(owner.table.length):
                block = owner.table.blocks[position // self.size]
                assert self.slots[block * self.size + position % self.size] == tuple(owner.tokens[: position + 1])

    @invariant()
    def a_stored_block_holds_what_its_name_says(self):
        for block in range(self.pool.num_blocks):
            if self.pool.holds_prefix(block):
                chain, link = [], self.pool.prefix(block)
                while link.parent:
                    chain, link = [*link.tokens, *chain], link.parent
                for i in range(self.size):
                    assert self.slots[block * self.size + i] == tuple(chain[: len(chain) - self.size + i + 1])


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestPool = pytest.mark.slow(PoolMachine.TestCase)


def ignore(*_: object, **__: object) -> None:
    pass


def fill(table: BlockTable, tokens: list[int], priority: int = 0) -> BlockTable:
    """Hold ``tokens``, and let others find the full blocks."""
    table.allocate_slots(len(tokens))
    table.roll_back(len(tokens))
    table.cache_full_blocks(tokens, len(tokens), ROOT, priority)
    return table


def tables_of(pool: BlockPool, count: int, copy: Callable = ignore) -> list[BlockTable]:
    return [BlockTable(pool, owner, ignore, paged=True, copy=copy) for owner in range(count)]


def leave_behind(pool: BlockPool, tokens: list[int], priority: int = 0) -> list[int]:
    """A sequence is started, stored and released. Returns its blocks."""
    table = fill(BlockTable(pool, 99, ignore, paged=True), tokens, priority)
    blocks = list(table.blocks)
    table.release()
    return blocks


def found(pool: BlockPool, tokens: list[int]) -> list[int]:
    return [block for block, _ in pool.find_cached_prefix(tokens, ROOT)]


def test_a_prefix_of_other_weights_is_not_found():
    pool = BlockPool(num_blocks=4, block_size=2)
    leave_behind(pool, [1, 1, 2, 2])
    assert len(pool.find_cached_prefix([1, 1, 2, 2, 3], ROOT)) == 2
    assert len(pool.find_cached_prefix([1, 1, 2, 2], ROOT)) == 1  # one token is left to compute
    assert pool.find_cached_prefix([1, 1, 2, 2, 3], Prefix.root("other weights")) == []


def test_the_last_owner_writes_in_place():
    """Copy on write: as many copies as there are owners, less one."""
    copies = []
    tables = tables_of(BlockPool(num_blocks=6, block_size=4), 3, copy=lambda *pair: copies.append(pair))
    tables[0].allocate_slots(6)
    tables[0].roll_back(6)
    for table in tables[1:]:
        table.fork_from(tables[0], 5)
    for table in tables:
        table.allocate_slots(7)
    assert copies == [(1, 2), (1, 3)]
    assert [list(table.blocks) for table in tables] == [[0, 2], [0, 3], [0, 1]]


def test_a_copy_that_fails_changes_neither_table_nor_pool():
    """Out of memory, most likely: the request ends, and what was taken for it is free again."""

    def fails(source, to):
        raise MemoryError

    pool = BlockPool(num_blocks=6, block_size=4)
    first, second = tables_of(pool, 2, copy=fails)
    first.allocate_slots(6)
    first.roll_back(6)
    second.fork_from(first, 5)
    before = pool.occupancy()
    with pytest.raises(MemoryError):
        second.allocate_slots(14)  # a copy of the tail, and two more
    assert pool.occupancy() == before
    assert (second.blocks, second.length) == (first.blocks, 5)
    first.release()
    second.release()
    assert pool.occupancy().live == 0


def test_each_block_of_a_long_prefix_is_compared_once(monkeypatch):
    """Otherwise a long document would be compared as often as it has blocks, in every step that a request waits."""
    pool, root, tokens = BlockPool(40, 2), Prefix.root("models"), list(range(61))
    prefix = root
    for index, block in enumerate(pool.allocate(30, lambda *_, **__: None)):
        prefix = prefix.then(tokens[2 * index : 2 * index + 2])
        assert pool.cache_full_block(block, prefix)
    parent, walked = Prefix.parent, []
    counted = property(lambda link: walked.append(link) or parent.__get__(link), parent.__set__)
    monkeypatch.setattr(Prefix, "parent", counted)
    assert len(pool.find_cached_prefix(tokens, root)) == 30
    assert len(walked) == 2 * 30  # once in each of the two chains


# -- eviction: the machine has the order, by recency and by priority ----------------------------


def evicted(pool: BlockPool, count: int) -> list[int]:
    gone: list[int] = []
    pool.allocate(count, lambda event, **fields: gone.append(fields["block"]) if event is BlockEvicted else None)
    return gone


def test_eviction_does_not_scan_all_cached_blocks():
    """With many blocks and few priorities, only the priorities are compared."""
    compared = []

    class Priority(int):
        def __lt__(self, other):
            compared.append(other)
            return int(self) < int(other)

    pool = BlockPool(num_blocks=300, block_size=2, eviction="priority")
    for number in range(300):
        leave_behind(pool, [number, number], Priority(number % 3))
    compared.clear()
    assert evicted(pool, 150) == [*range(0, 300, 3), *range(1, 150, 3)]
    assert len(compared) <= 150 * 3


def test_contiguous_tables_need_adjacent_blocks():
    pool = BlockPool(num_blocks=5, block_size=1)
    assert leave_behind(pool, [1]) == [0]  # a cached block is not among those that they can have
    tables = [BlockTable(pool, owner, ignore, paged=False) for owner in range(4)]
    for table in tables:
        table.allocate_slots(1)
    tables[0].release()
    tables[2].release()
    scattered = BlockTable(pool, 9, ignore, paged=False)
    with pytest.raises(PoolExhaustedError, match=r"2 cache blocks side by side are needed and 2 of 5 are free"):
        scattered.allocate_slots(2)
    paged = BlockTable(pool, 9, ignore, paged=True)
    paged.allocate_slots(2)
    assert sorted(paged.blocks) == [1, 3]
    paged.release()
    tables[3].release()
    scattered.allocate_slots(2)  # behind the one that lies alone
    assert list(scattered.blocks) == [3, 4]
