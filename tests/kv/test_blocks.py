"""Block accounting under random use."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from lab.config import PoolExhaustedError
from lab.kv.blocks import BlockPool, BlockTable
from lab.trace.events import BlockAllocated, BlockFreed


class PoolMachine(RuleBasedStateMachine):
    """Sequences start, grow, roll back and end, contiguous and paged ones in one pool."""

    tables = Bundle("tables")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(num_blocks=12, block_size=4)
        self.open: list[BlockTable] = []
        self.owned: dict[int, int] = {}  # block -> owner, rebuilt from events alone
        self.started = 0

    def emit(self, event_type, *, block, owner, index, fill) -> None:
        if event_type is BlockAllocated:
            assert block not in self.owned
            assert fill == 0
            self.owned[block] = owner
        else:
            assert event_type is BlockFreed
            assert self.owned.pop(block) == owner
            assert 0 <= fill <= self.pool.block_size

    @rule(target=tables, paged=st.booleans(), tokens=st.integers(1, 40))
    def start(self, paged, tokens):
        table = BlockTable(self.pool, self.started, self.emit, paged=paged)
        self.started += 1
        try:
            table.reserve(tokens)
        except PoolExhaustedError:
            assert table.blocks == []
        self.open.append(table)
        table.roll_back(min(tokens, table.capacity))
        return table

    @rule(table=tables, tokens=st.integers(1, 12))
    def grow(self, table, tokens):
        before = list(table.blocks)
        if not table.paged:
            tokens = min(tokens, table.capacity - table.length)
        try:
            table.reserve(table.length + tokens)
        except PoolExhaustedError:
            assert table.blocks == before
        else:
            assert table.blocks[: len(before)] == before
            table.roll_back(table.length + tokens)

    @rule(table=tables, data=st.data())
    def roll_back(self, table, data):
        table.roll_back(data.draw(st.integers(0, table.length)))

    @rule(table=consumes(tables), twice=st.booleans())
    def release(self, table, twice):
        table.release()
        if twice:
            table.release()
        self.open.remove(table)
        assert table.blocks == []

    @precondition(lambda self: self.open)
    @invariant()
    def tables_hold_enough_and_no_more(self):
        for table in self.open:
            assert table.length <= table.capacity
            if table.paged:
                assert table.capacity - table.length < self.pool.block_size
            else:
                first = table.blocks[0] if table.blocks else 0
                assert table.blocks == list(range(first, first + len(table.blocks)))

    @invariant()
    def every_block_has_one_owner(self):
        held = [(block, table.owner) for table in self.open for block in table.blocks]
        assert len({block for block, _ in held}) == len(held)
        assert dict(held) == self.owned
        assert all(self.pool.owner(block) == owner for block, owner in held)

    @invariant()
    def states_add_up(self):
        state = self.pool.occupancy()
        assert sum(state) == self.pool.num_blocks
        assert state.live == len(self.owned)


PoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase


def ignore(*_: object, **__: object) -> None:
    pass


def test_contiguous_needs_neighbours():
    pool = BlockPool(num_blocks=4, block_size=1)
    tables = [BlockTable(pool, owner, ignore, paged=False) for owner in range(4)]
    for table in tables:
        table.reserve(1)
    tables[0].release()
    tables[2].release()
    scattered = BlockTable(pool, 9, ignore, paged=False)
    with pytest.raises(PoolExhaustedError, match=r"2 cache blocks side by side are needed and 2 of 4 are free"):
        scattered.reserve(2)
    paged = BlockTable(pool, 9, ignore, paged=True)
    paged.reserve(2)
    assert sorted(paged.blocks) == [0, 2]


def test_a_block_cannot_be_given_back_by_another():
    pool = BlockPool(num_blocks=1, block_size=1)
    (block,) = pool.take(7, 1, neighbours=False)
    with pytest.raises(AssertionError, match="belongs to 7"):
        pool.give_back(block, 8)
