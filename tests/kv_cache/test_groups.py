"""Groups of layers over one pool, under random use: what slid out of a window is freed, and nothing still seen."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from lab.errors import PoolExhaustedError
from lab.kv_cache.block_pool import BlockPool
from lab.kv_cache.block_table import BlockTable
from lab.kv_cache.hybrid_block_table import find_cached_blocks, new_table
from lab.kv_cache.kv_cache_groups import FullAttentionSpec, SlidingWindowSpec, kv_cache_groups
from lab.kv_cache.prefix_cache import Prefix
from lab.trace.events import BlockAllocated, BlockCopied, BlockFreed, BlockShared

ROOT = Prefix.root("weights")
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)
STATES = 3
WINDOWS = [[None, 3], [5], [None, 1, 4, 1], [3, 6]]


class GroupsMachine(RuleBasedStateMachine):
    """Sequences start, share, draft, roll back, go on and end. A slot holds its group and the tokens up to it, and a
    recurrent state those before it: some are kept where blocks end."""

    owners = Bundle("owners")

    @initialize(windows=st.sampled_from(WINDOWS), shared=st.booleans(), recurrent=st.booleans())
    def begin(self, windows, shared, recurrent):
        self.size, self.recurrent = 2, recurrent
        self.pool = BlockPool(24, self.size, groups=kv_cache_groups(windows, shared=shared), max_states=STATES)
        self.stored: set[Prefix] = set()
        self.started = 0
        self.slots: dict[int, tuple] = {}
        self.open: dict[BlockTable, list[int]] = {}
        self.held: dict[tuple[int, int, int], int] = {}  # by owner, group and index, from events alone

    def emit(self, event, **fields):
        if event in (BlockAllocated, BlockCopied, BlockShared):
            self.held[fields["owner"], fields["group"], fields["index"]] = fields["block"]
        elif event is BlockFreed:
            assert self.held.pop((fields["owner"], fields["group"], fields["index"])) == fields["block"]

    def copy(self, source, destination):
        for i in range(self.size):
            self.slots[destination * self.size + i] = self.slots.get(source * self.size + i, ())

    def new_table(self):
        self.started += 1
        return new_table(self.pool, self.started, self.emit, paged=True, copy=self.copy)

    def tables(self, table):
        return [(group.spec, table.of_group(i) if i else table) for i, group in enumerate(self.pool.groups)]

    def compute(self, table, known, rejected):
        """A step: slots for known and draft tokens, which see what is before them; the draft tokens are rejected."""
        start, drafted = table.length, known + [7] * rejected
        try:
            table.allocate_slots(len(drafted))
        except PoolExhaustedError:
            table.roll_back(start)
            return
        for spec, one in self.tables(table):
            for position in range(spec.num_skipped(start), len(drafted)):
                slot = one.blocks[position // self.size] * self.size + position % self.size
                if position >= start:
                    assert self.pool.references(one.blocks[position // self.size]) == 1
                    assert not self.pool.holds_prefix(one.blocks[position // self.size])
                    self.slots[slot] = (one.group, *drafted[: position + 1])
                assert self.slots[slot] == (one.group, *drafted[: position + 1])
            assert one.skipped == spec.num_skipped(start) // self.size  # freed as early as can be
        table.roll_back(len(known))
        self.open[table] = known
        table.cache_full_blocks(known, len(known), ROOT, 0)
        whole = len(known) // self.size * self.size
        if self.recurrent and (prefix := table.prefix(whole)) and not prefix.state:
            self.pool.states.keep(prefix, known[:whole])
            self.stored.add(prefix)

    @rule(target=owners, tokens=TOKENS, rejected=st.integers(0, 3), behind=st.integers(0, 1))
    def start(self, tokens, rejected, behind):
        """``behind``: the last block that is found is computed again."""
        table = self.new_table()
        if found := find_cached_blocks(self.pool, tokens, ROOT, with_state=self.recurrent, behind=behind):
            table.attach_cached_blocks(found, 0)
            assert 0 < table.length < len(tokens)
            if self.recurrent:
                table.roll_back(table.length - behind * self.size, behind)
                assert self.pool.states.use(table.prefix(table.length)) == tokens[: table.length]
        self.open[table] = tokens[: table.length]
        self.compute(table, tokens, rejected)
        return table

    @rule(target=owners, leader=owners, data=st.data())
    def continue_alike(self, leader, data):
        table = self.new_table()
        length = data.draw(st.integers(0, leader.length))
        if leader.holds(length):
            table.fork_from(leader, length)
        self.open[table] = self.open[leader][: table.length]
        return table

    @rule(table=owners, more=TOKENS, rejected=st.integers(0, 3))
    def go_on(self, table, more, rejected):
        self.compute(table, self.open[table] + more, rejected)

    @rule(table=consumes(owners))
    def end(self, table):
        table.release()
        del self.open[table]

    @invariant()
    def tables_are_those_that_events_tell_and_references_count_them(self):
        held = {
            (table.owner, group, index): block
            for table in self.open
            for group, (_, one) in enumerate(self.tables(table))
            for index, block in enumerate(one.blocks)
            if block >= 0
        }
        assert held == self.held
        for block in range(self.pool.num_blocks):
            assert self.pool.references(block) == list(held.values()).count(block)

    @invariant()
    def states_are_few_and_of_prefixes_that_can_be_found(self):
        kept = [prefix for prefix in self.stored if prefix.state]
        assert len(kept) <= STATES
        assert all(self.pool.stored(prefix) is prefix for prefix in kept)

    @invariant()
    def what_the_next_token_sees_is_there(self):
        for table, tokens in self.open.items():
            for spec, one in self.tables(table):
                assert one.length == len(tokens)
                for position in range(spec.num_skipped(len(tokens)), len(tokens)):
                    slot = one.blocks[position // self.size] * self.size + position % self.size
                    assert self.slots[slot] == (one.group, *tokens[: position + 1])


GroupsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestGroups = pytest.mark.slow(GroupsMachine.TestCase)


def test_groups_are_of_one_kind_and_size_and_begin_with_full_attention_where_it_is_needed() -> None:
    gemma = [512, 512, 512, 512, 512, None] * 2 + [512]
    groups = kv_cache_groups(gemma, shared=False)
    assert [len(group.layers) for group in groups] == [2, 2, 2, 2, 2, 2, 1]
    assert groups[0] == (FullAttentionSpec(), (5, 11))
    assert sorted(layer for group in groups for layer in group.layers) == list(range(13))
    assert kv_cache_groups([4, 0, 4], shared=False) == ((SlidingWindowSpec(4), (0, 2)),)
    assert kv_cache_groups([4, 4], shared=True) == ((FullAttentionSpec(), ()), (SlidingWindowSpec(4), (0, 1)))
    assert kv_cache_groups([None, 0, None], shared=True) == ((FullAttentionSpec(), (0, 2)),)


def test_a_prefix_is_found_by_the_blocks_that_are_still_seen() -> None:
    """Not with those that slid out of the window; and not at all once one that is seen was evicted."""
    pool = BlockPool(40, 2, groups=kv_cache_groups([None, 4], shared=False))
    tokens = list(range(21))
    table = new_table(pool, 0, lambda *_, **__: None, paged=True, copy=lambda *_: None)
    for length in (8, 16, 20):
        table.allocate_slots(length)
        table.roll_back(length)
        table.cache_full_blocks(tokens, length, ROOT, 0)
    slid, blocks = (
        [index for index, block in enumerate(table.others[0].blocks) if block < 0],
        list(table.others[0].blocks),
    )
    assert slid == list(range((16 - 4 + 1) // 2))
    full, windowed = find_cached_blocks(pool, tokens, ROOT)
    assert [block for block, _ in full] == list(table.blocks)
    assert [block for block, _ in windowed] == [None] * 8 + blocks[8:]
    table.release()
    pool.allocate(40 - 2, lambda *_, **__: None)  # all but the two that were used last: the first ones of a text
    assert find_cached_blocks(pool, tokens, ROOT) == []
