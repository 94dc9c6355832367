"""The block map: whatever happens to the blocks, it shows what a simple model of the pool holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.config import EngineConfig
from lab.trace.events import (
    Admitted,
    BlockAllocated,
    BlockCopied,
    BlockEvicted,
    BlockFreed,
    BlockShared,
    BlockStored,
    CacheDropped,
    Event,
    Preempted,
    StepTimed,
)
from tests.visualize.conftest import script
from tests.visualize.picture import Picture, apply
from visualize.charts import block_charts as blocks
from visualize.reduce.block_map import RunBlocks
from visualize.reduce.frames import Reducer

SIZE, COUNT, ME = 4, 12, 3
ADMITTED = Admitted(t_ms=0, owner=ME, running=2, waiting=0, cached_tokens=8, live_blocks=(4, 5), cached_blocks=(0, 1))


def taken(block: int, index: int, fill: int = 0) -> BlockAllocated:
    return BlockAllocated(t_ms=0, block=block, owner=ME, index=index, fill=fill)


def found(block: int, index: int, references: int = 1) -> BlockShared:
    return BlockShared(t_ms=0, block=block, owner=ME, index=index, fill=SIZE, references=references)


def freed(block: int, index: int, references: int = 0, cached: bool = False) -> BlockFreed:
    return BlockFreed(t_ms=0, block=block, owner=ME, index=index, fill=0, references=references, cached=cached)


def looks(columns: list[dict[str, list[Any]]], block: int) -> tuple[str, str, bool]:
    """How a block looks: its state, the pattern of its fill, whether it is marked as stored."""
    states = [name for trace, name in enumerate(blocks.TRACES[:3]) if columns[trace]["y"][block] is not None]
    assert len(states) == 1, "a block is in one state"
    fill, stored = columns[4], columns[5]
    return states[0], fill["pattern"][block] if fill["y"][block] else "", stored["y"][block] is not None


class Model:
    """The simplest model of the pool: what happened to each block, and this run's block table."""

    def __init__(self) -> None:
        self.blocks: dict[int, str] = {}
        self.table: list[int] = []

    def choices(self) -> list[str]:
        can = ["admit", "drop"] if not self.table else ["free", "share", "store"]
        can += ["evict"] if "cached" in self.blocks.values() else []
        free = [block for block in range(COUNT) if block not in self.blocks]
        return [*can, *(["take", "copy"] if free else [])]

    def act(self, data: st.DataObject) -> Event:
        """Something an engine may do next: apply it here and return its event."""
        free = [block for block in range(COUNT) if block not in self.blocks]
        match data.draw(st.sampled_from(self.choices())):
            case "take" | "copy" as what:
                return self._own(data.draw(st.sampled_from(free)), what)
            case "share":
                others = [block for block in range(COUNT) if block not in self.table]
                if not others:
                    return self._stored(data)
                return self._own(data.draw(st.sampled_from(others)), "found")
            case "store":
                return self._stored(data)
            case "free":
                block = self.table.pop()
                references, cached = data.draw(st.sampled_from([(0, False), (0, True), (2, False), (2, True)]))
                self.blocks.pop(block)
                if references or cached:
                    self.blocks[block] = "theirs" if references else "cached"
                return freed(block, len(self.table), references, cached)
            case "evict":
                block = data.draw(st.sampled_from([b for b, what in self.blocks.items() if what == "cached"]))
                self.blocks.pop(block)
                return BlockEvicted(t_ms=0, block=block)
            case "drop":
                self.blocks = {block: what for block, what in self.blocks.items() if what != "cached"}
                return CacheDropped(t_ms=0, reason="Other weights.")
            case _:
                live = data.draw(st.sets(st.integers(0, COUNT - 1), max_size=4))
                cached = data.draw(st.sets(st.integers(0, COUNT - 1), max_size=4)) - live
                self.blocks = dict.fromkeys(live, "theirs") | dict.fromkeys(cached, "cached")
                return replace(ADMITTED, live_blocks=tuple(live), cached_blocks=tuple(cached))

    def _own(self, block: int, what: str) -> Event:
        self.blocks[block] = what
        self.table.append(block)
        index = len(self.table) - 1
        if what == "found":
            return found(block, index, 2)
        if what == "copy":
            return BlockCopied(t_ms=0, block=block, owner=ME, index=index, fill=SIZE, source=0)
        return taken(block, index, SIZE)

    def _stored(self, data: st.DataObject) -> Event:
        index = data.draw(st.integers(0, len(self.table) - 1))
        block = self.table[index]
        if not self.blocks[block].endswith("!"):
            self.blocks[block] += "!"
        return BlockStored(t_ms=0, block=block, owner=ME, index=index)

    def looks(self, block: int) -> tuple[str, str, bool]:
        what = self.blocks.get(block, "free")
        if what in ("free", "cached"):
            return what, "", False
        pattern = {"take": "", "copy": ".", "found": "/", "theirs": "x"}[what.rstrip("!")]
        return "live", pattern, what.endswith("!") or what == "found"


@settings(max_examples=200)
@given(st.data())
def test_after_any_sequence_of_events_the_map_matches_the_model(data: st.DataObject) -> None:
    model, view, columns = Model(), RunBlocks(COUNT, SIZE), blocks.columns(COUNT)
    for _ in range(data.draw(st.integers(1, 25))):
        for _ in range(data.draw(st.integers(1, 3))):  # several events between two frames
            view.take(model.act(data))
        apply(columns, view.patches())
        assert [looks(columns, block) for block in range(COUNT)] == [model.looks(block) for block in range(COUNT)]
        states = [model.looks(block)[0] for block in range(COUNT)]
        assert view.caption().startswith(f"{states.count('live')} of {COUNT} in use")
        assert (f"{states.count('cached')} cached" in view.caption()) == ("cached" in states)
    assert view.patches() == []


def test_blocks_fill_up_in_the_order_of_the_block_table() -> None:
    view, columns = RunBlocks(COUNT, SIZE), blocks.columns(COUNT)
    for event in (ADMITTED, found(1, 0), taken(0, 1), taken(7, 2)):
        view.take(event)
    view.level(6)
    apply(columns, view.patches())
    heights = [columns[4]["y"][block] for block in (1, 0, 7)]
    assert heights[1] == heights[0] / 2
    assert heights[2] is None
    assert view.caption() == "5 of 12 in use, 50% full"
    view.level(7)
    assert {block for _, block, _ in view.patches()} == {0}


def test_slots_written_for_rejected_guesses_show_until_the_next_pass() -> None:
    view, columns = RunBlocks(COUNT, SIZE), blocks.columns(COUNT)
    for event in (ADMITTED, found(1, 0), taken(0, 1), taken(7, 2)):
        view.take(event)
    view.level(SIZE + 1)
    view.level(SIZE + 3, guesses=3)  # it wrote one token and three guesses, of which one was accepted
    apply(columns, view.patches())
    vain, fill = columns[3], columns[4]
    slot = -(blocks.SIDE - 2 * blocks.INSET) / SIZE
    assert [round((fill["y"][block] or 0) / slot, 1) for block in (1, 0, 7)] == [4, 3, 0]
    assert [round((vain["y"][block] or 0) / slot, 1) for block in (1, 0, 7)] == [0, 4, 1]  # three are under the fill
    words = columns[1]["customdata"][0][1]
    assert "3 of 4 slots filled<br>1 more written for rejected draft tokens" in words
    view.level(SIZE + 4)  # the next pass keeps one token
    apply(columns, view.patches())
    assert not any(vain["y"])
    view.level(SIZE + 5, guesses=2)
    for block, index in ((7, 2), (0, 1)):
        view.take(freed(block, index))
    view.ended()  # blocks given back keep their fill, and slots of guesses are cleared
    apply(columns, view.patches())
    assert not any(vain["y"])
    assert fill["y"][7] is not None


def test_one_slot_written_in_vain_is_one_slot() -> None:
    view, columns = RunBlocks(COUNT, SIZE), blocks.columns(COUNT)
    for event in (ADMITTED, found(1, 0), taken(0, 1)):
        view.take(event)
    view.level(2 * SIZE - 1)
    for event in (taken(7, 2), freed(7, 2)):
        view.take(event)
    view.level(2 * SIZE, guesses=1)
    apply(columns, view.patches())
    assert columns[0]["customdata"][7][1].endswith("<br>1 slot written for rejected draft tokens")


def test_a_block_used_only_by_rejected_guesses_shows_until_the_next_pass() -> None:
    view, columns = RunBlocks(COUNT, SIZE), blocks.columns(COUNT)
    for event in (ADMITTED, found(1, 0), taken(0, 1)):
        view.take(event)
    view.level(2 * SIZE - 1)
    for event in (taken(7, 2), taken(9, 3), freed(9, 3), freed(7, 2)):
        view.take(event)
    view.level(2 * SIZE, guesses=3)  # it wrote the last slot of its block and three guesses, all rejected
    apply(columns, view.patches())
    vain, slot = columns[3]["y"], -(blocks.SIDE - 2 * blocks.INSET) / SIZE
    assert [round((vain[block] or 0) / slot, 1) for block in (0, 7, 9)] == [0, 3, 0]
    words = columns[0]["customdata"][7][1]
    assert words == f"free again: it was entry 2 of sequence {ME}'s table<br>3 slots written for rejected draft tokens"
    assert view.caption() == "4 of 12 in use, 100% full"
    view.take(taken(7, 2))  # allocated again
    view.level(2 * SIZE + 1)
    apply(columns, view.patches())
    assert not any(vain)
    for event in (taken(9, 3), freed(9, 3)):
        view.take(event)
    view.level(3 * SIZE, guesses=SIZE)
    apply(columns, view.patches())
    assert [block for block, y in enumerate(vain) if y is not None] == [9]
    view.level(3 * SIZE)
    apply(columns, view.patches())
    assert not any(vain)
    assert columns[0]["customdata"][9][1] == "free"


def test_blocks_shared_or_given_back_before_an_admission_show_no_rejected_guesses() -> None:
    view, columns = RunBlocks(COUNT, SIZE), blocks.columns(COUNT)
    for event in (ADMITTED, found(1, 0), taken(0, 1), taken(7, 2)):
        view.take(event)
    view.level(2 * SIZE)
    view.take(freed(7, 2, references=1))
    view.level(2 * SIZE, guesses=SIZE)
    apply(columns, view.patches())
    assert looks(columns, 7)[0] == "live"
    view.take(taken(9, 2))
    view.level(2 * SIZE)
    for event in (Preempted(t_ms=0, tokens=2 * SIZE), freed(9, 2), freed(0, 1), freed(1, 0, cached=True), ADMITTED):
        view.take(event)
    for event in (found(1, 0), taken(0, 1)):
        view.take(event)
    view.level(2 * SIZE, guesses=SIZE)
    apply(columns, view.patches())
    assert not any(columns[3]["y"])


@pytest.mark.parametrize("freed_first", [False, True])
def test_a_preempted_run_is_redrawn_when_it_is_admitted_again(freed_first: bool) -> None:
    """Its blocks are given back; one stays as a cached prefix and is found again."""
    first = script(EngineConfig(paged=True, enable_prefix_caching=True, block_size=SIZE, num_blocks=COUNT), 2)
    head, step = first[0], next(event for event in first if isinstance(event, StepTimed))
    step = replace(step, step_kind="prefill", kv_tokens=6)
    events: list[Event] = [head, replace(ADMITTED, cached_tokens=0), taken(2, 0), taken(3, 1), step]
    events += [BlockStored(t_ms=1, block=2, owner=ME, index=0)]
    given_back = [freed(3, 1), freed(2, 0, cached=True)]
    preempted = Preempted(t_ms=1, tokens=6)
    events += [*given_back, preempted] if freed_first else [preempted, *given_back]
    shown, reducer = Picture(), Reducer()
    for frame in reducer.feed(events):
        shown.apply(frame)
    assert [looks(shown.columns["blocks"], block)[0] for block in range(6)] == [
        "cached", "cached", "cached", "free", "live", "live",
    ]  # fmt: skip
    assert "what is no longer cached of its 6 tokens will be computed again" in shown.say
    again = [
        replace(ADMITTED, live_blocks=(4, 9), cached_blocks=(2,), cached_tokens=4),
        found(2, 0),
        taken(0, 1),
        replace(step, kv_tokens=7, step=1),
    ]
    frames = reducer.feed(again)
    assert frames[0]["say"].startswith("Admitted again. Prefix cache hit")
    for frame in frames:
        shown.apply(frame)
    assert [looks(shown.columns["blocks"], block) for block in (0, 1, 2, 3, 4, 5, 9)] == [
        ("live", "", False),
        ("free", "", False),
        ("live", "/", True),
        ("free", "", False),
        ("live", "x", False),
        ("free", "", False),
        ("live", "x", False),
    ]
    assert shown.captions["blocks"] == "4 of 12 in use, 88% full"


def test_blocks_of_another_pool_are_not_drawn() -> None:
    view = RunBlocks(COUNT, SIZE)
    view.take(replace(ADMITTED, live_blocks=(COUNT + 5,), cached_blocks=(1,)))
    assert {block for _, block, _ in view.patches()} == {1}
