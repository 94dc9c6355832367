"""The block map: whatever happens to the blocks, of one run or of many, it shows what a simple model holds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.config import EngineConfig
from lab.measure.workload import PlannedRequest
from lab.trace.events import (
    Admitted,
    BlockAllocated,
    BlockCopied,
    BlockEvicted,
    BlockFreed,
    BlockShared,
    BlockStored,
    CacheDropped,
    Committed,
    Event,
    FellBack,
    Finished,
    Preempted,
    Proposed,
    RunStarted,
    StepTimed,
)
from lab.trace.recorder import BatchStep
from tests.visualize.conftest import script
from tests.visualize.crowd import LETTERS, job, lengths, picture, ran, runs, table
from tests.visualize.picture import Picture, apply
from visualize.pages.pool.pool_frames import BatchReducer
from visualize.reduce.block_map import BlockMap
from visualize.reduce.frames import Reducer

SIZE, COUNT, ME = 4, 12, 3
ADMITTED = Admitted(t_ms=0, owner=ME, running=2, waiting=0, cached_tokens=8, live_blocks=(4, 5), cached_blocks=(0, 1))
OVER = Finished(t_ms=0, reason="cancelled", text="", message="")
PREEMPTED = Preempted(t_ms=0, tokens=1)
ELSEWHERE = FellBack(t_ms=0, part="kv_format", reason="")


def taken(block: int, index: int, owner: int = ME) -> BlockAllocated:
    return BlockAllocated(t_ms=0, block=block, owner=owner, index=index, fill=0)


def found(block: int, index: int, owner: int = ME) -> BlockShared:
    return BlockShared(t_ms=0, block=block, owner=owner, index=index, fill=SIZE, references=2)


def freed(block: int, index: int, references: int = 0, cached: bool = False, owner: int = ME) -> BlockFreed:
    return BlockFreed(t_ms=0, block=block, owner=owner, index=index, fill=0, references=references, cached=cached)


STEP = next(event for event in script(EngineConfig(paged=True), 2) if isinstance(event, StepTimed))


def ended(kv_tokens: int, proposed: int = 0) -> list[Event]:
    """The events that end a step."""
    draft = Proposed(t_ms=0, step=1, position=0, token_id=0, text="", q=1.0)
    return [draft] * proposed + [replace(STEP, kv_tokens=kv_tokens)]


class Alone(BlockMap):
    """The map of one run, with its rows as the page has them."""

    def __init__(self) -> None:
        super().__init__(COUNT, SIZE, alone=True)
        self.shown = self.columns()

    def see(self, *events: Event) -> Alone:
        for event in events:
            self.take(ME, event)
        apply(self.shown, self.patches())
        return self

    def column(self, name: str, *blocks: int) -> list[Any]:
        return [self.shown[0][name][block] for block in blocks or range(COUNT)]


class Model:
    """The simplest model of the pool: what happened to each block, and this run's block table."""

    def __init__(self) -> None:
        self.blocks: dict[int, str] = {}
        self.table: list[int] = []

    def act(self, data: st.DataObject) -> Event:
        """Something an engine may do next: apply it here and return its event."""
        free = [block for block in range(COUNT) if block not in self.blocks]
        cached = [block for block, what in self.blocks.items() if what == "cached"]
        others = [block for block in range(COUNT) if block not in self.table]
        can = (["free", "store"] + ["share"] * bool(others)) if self.table else ["admit", "drop"]
        match data.draw(st.sampled_from(can + ["evict"] * bool(cached) + ["take", "copy"] * bool(free))):
            case "take" | "copy" as what:
                return self._own(data.draw(st.sampled_from(free)), what)
            case "share":
                return self._own(data.draw(st.sampled_from(others)), "found!")
            case "store":
                index = data.draw(st.integers(0, len(self.table) - 1))
                block = self.table[index]
                self.blocks[block] = self.blocks[block].rstrip("!") + "!"
                return BlockStored(t_ms=0, block=block, owner=ME, index=index)
            case "free":
                block = self.table.pop()
                references, cached = data.draw(st.sampled_from([(0, False), (0, True), (2, False), (2, True)]))
                self.blocks.pop(block)
                if references or cached:
                    self.blocks[block] = "theirs" if references else "cached"
                return freed(block, len(self.table), references, cached)
            case "evict":
                block = data.draw(st.sampled_from(cached))
                self.blocks.pop(block)
                return BlockEvicted(t_ms=0, block=block)
            case "drop":
                self.blocks = {block: what for block, what in self.blocks.items() if what != "cached"}
                return CacheDropped(t_ms=0, reason="Other weights.")
        live = data.draw(st.sets(st.integers(0, COUNT - 1), max_size=4))
        kept = data.draw(st.sets(st.integers(0, COUNT - 1), max_size=4)) - live
        self.blocks = dict.fromkeys(live, "theirs") | dict.fromkeys(kept, "cached")
        return replace(ADMITTED, live_blocks=tuple(live), cached_blocks=tuple(kept))

    def _own(self, block: int, what: str) -> Event:
        self.blocks[block] = what
        self.table.append(block)
        index = len(self.table) - 1
        if what == "copy":
            return BlockCopied(t_ms=0, block=block, owner=ME, index=index, fill=SIZE, source=0)
        return taken(block, index) if what == "take" else found(block, index)

    def row(self, block: int) -> tuple[str, list[int], str, bool]:
        what = self.blocks.get(block, "free")
        if what in ("free", "cached"):
            return what, [], "", False
        mark = {"take": "", "copy": "copied", "found": "found", "theirs": ""}[what.rstrip("!")]
        return "live", [ME] if what != "theirs" else [], mark, what.endswith("!")


@pytest.mark.slow
@settings(max_examples=100)
@given(st.data())
def test_after_any_events_of_a_run_the_map_matches_the_model(data: st.DataObject) -> None:
    model, view = Model(), Alone()
    for _ in range(data.draw(st.integers(1, 25))):
        view.see(*(model.act(data) for _ in range(data.draw(st.integers(1, 3)))))
        marks = [mark if mark != "evicted" else "" for mark in view.column("mark")]
        rows = zip(view.column("state"), view.column("owners"), marks, view.column("stored"), strict=True)
        assert list(rows) == [model.row(block) for block in range(COUNT)]
        states = view.column("state")
        assert view.occupancy() == tuple(map(states.count, ("free", "cached", "live")))
        assert view.caption().startswith(f"{states.count('live')} in use")
    view.see()
    assert view.patches() == []


def test_blocks_fill_up_and_rejected_draft_tokens_show_until_the_next_step() -> None:
    view = Alone().see(ADMITTED, found(1, 0), taken(0, 1), taken(7, 2), *ended(6))
    assert view.column("fill", 1, 0, 7) == [4, 2, 0]
    assert view.column("index", 1, 0, 7) == [0, 1, 2]
    assert view.column("references", 1, 0, 7) == [2, 0, 0]
    assert view.caption() == "5 in use, 50% full · 0 cached · 7 free"
    view.see(*ended(SIZE + 1))
    view.see(*ended(SIZE + 3, 3))  # it wrote one token and three draft tokens, of which one was accepted
    assert (view.column("fill", 1, 0, 7), view.column("vain", 1, 0, 7)) == ([4, 3, 0], [0, 1, 1])
    view.see(*ended(SIZE + 4))  # the next step keeps one token
    assert not any(view.column("vain"))
    view.see(*ended(SIZE + 5, 2), freed(7, 2), freed(0, 1), OVER)
    assert not any(view.column("vain")), "freed blocks keep their fill, and slots of draft tokens are cleared"
    assert (view.column("state", 7, 0), view.column("fill", 7, 0)) == (["free", "free"], [1, 4])


def test_a_block_that_others_hold_shows_no_rejected_draft_tokens_and_does_not_turn_free() -> None:
    view = Alone().see(ADMITTED, found(1, 0), taken(0, 1), taken(7, 2), *ended(2 * SIZE))
    view.see(freed(7, 2, references=1), *ended(2 * SIZE, SIZE))
    assert (view.column("state", 7), view.column("vain", 7)) == (["live"], [0])
    view.see(taken(9, 2), *ended(2 * SIZE))
    view.see(PREEMPTED, freed(9, 2), freed(0, 1), freed(1, 0, cached=True), ADMITTED, found(1, 0), taken(0, 1))
    view.see(*ended(2 * SIZE, SIZE))
    assert not any(view.column("vain")), "blocks freed before an admission"


@pytest.mark.parametrize("freed_first", [False, True])
def test_a_preempted_run_is_redrawn_when_it_is_admitted_again(freed_first: bool) -> None:
    """Its blocks are given back; one stays as a cached prefix and is found again."""
    config = EngineConfig(paged=True, enable_prefix_caching=True, block_size=SIZE, num_blocks=COUNT)
    step = replace(STEP, step_kind="prefill", kv_tokens=6)
    stored = BlockStored(t_ms=1, block=2, owner=ME, index=0)
    begun = [script(config, 2)[0], replace(ADMITTED, cached_tokens=0), taken(2, 0), taken(3, 1), step, stored]
    given_back, preempted = [freed(3, 1), freed(2, 0, cached=True)], [replace(PREEMPTED, tokens=6)]
    shown, reducer = Picture(), Reducer()
    for frame in reducer.feed(begun + (given_back + preempted if freed_first else preempted + given_back)):
        shown.apply(frame)
    state = shown.columns["pool"][0]["state"]
    assert state[:6] == ["cached", "cached", "cached", "free", "live", "live"]
    assert "what is no longer cached of its 6 tokens will be computed again" in shown.say
    again = replace(ADMITTED, live_blocks=(4, 9), cached_blocks=(2,), cached_tokens=4)
    for frame in reducer.feed([again, found(2, 0), taken(0, 1), replace(step, kv_tokens=7, step=1)]):
        shown.apply(frame)
    rows = {row: shown.columns["pool"][0][row] for row in ("state", "owners", "mark", "stored")}
    assert [block for block, state in enumerate(rows["state"]) if state == "live"] == [0, 2, 4, 9]
    assert [rows["owners"][block] for block in (0, 2, 4, 9)] == [[0], [0], [], []]
    assert (rows["mark"][2], rows["stored"][2]) == ("found", True)
    assert shown.captions["blocks"] == "4 in use, 88% full · 0 cached · 8 free"


# -- many sequences ----------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(runs())
def test_the_squares_show_what_the_pool_holds_at_every_step(
    run: tuple[list[PlannedRequest], list[BatchStep], int],
) -> None:
    """Every admission also lists the pool's live and cached blocks as they were just before."""
    jobs, steps, num_blocks = run
    started = next(entry.event for entry in steps[0].entries if isinstance(entry.event, RunStarted))
    blocks = BlockMap(num_blocks, started.config["block_size"])
    frames = BatchReducer(len(lengths(jobs))).feed(steps)
    shown, owners = picture(), defaultdict(list)  # block -> sequences, from the events alone
    for frame, step in zip(frames, steps, strict=False):
        live = None  # while the step is computed
        for owner, event in ((entry.owner, entry.event) for entry in step.entries):
            if isinstance(event, Admitted):
                assert (blocks.owners.keys(), blocks.cached) == (set(event.live_blocks), set(event.cached_blocks))
            blocks.take(owner, event)
            assert sum(blocks.occupancy()) == num_blocks
            assert min(blocks.occupancy()) >= 0
            if live is None and isinstance(event, Committed | StepTimed):
                live = sum(map(bool, owners.values()))
            if isinstance(event, BlockAllocated | BlockShared | BlockCopied):
                owners[event.block].append(owner)
            elif isinstance(event, BlockFreed):
                owners[event.block].remove(owner)
        rows = table(shown.apply(frame), "pool")
        assert [sorted(row["owners"]) for row in rows] == [sorted(owners[block]) for block in range(num_blocks)]
        for row in rows:
            assert (row["state"] == "live") == bool(row["owners"])
            assert 0 <= row["fill"] <= frames[0]["head"]["block_size"]
            assert row["fill"] == 0 or row["owners"]
        stacked = [shown.columns["occupancy"][trace]["y"][-1] for trace in range(3)]
        assert stacked[0] == live > 0
        assert sum(stacked) == num_blocks
        assert shown.captions["pool"].startswith(f"{[row['state'] for row in rows].count('live')} in use")
        held = {row["number"]: row["blocks"] for row in table(shown, "sequences")}
        assert held == {owner: sum(held.count(owner) for held in owners.values()) for owner in held}
    assert blocks.occupancy().live == 0
    assert remembered(blocks) == set()


def remembered(blocks: BlockMap) -> set[int]:
    """The sequences of which it still keeps something."""
    held = {owner for owners in blocks.owners.values() for owner in owners}
    return held.union(blocks.tables, blocks._kept, blocks._giving_up, blocks._elsewhere)


def test_continuations_share_prompt_blocks_and_copy_on_write() -> None:
    steps = ran([job(LETTERS[:6], 4, continuations=3)], block_size=4, num_blocks=12)
    shown, frames = picture(), BatchReducer(3).feed(steps)
    assert [row["owners"] for row in table(shown.apply(frames[0]), "pool") if row["owners"]] == [[0], [0]]
    rows = [row for row in table(shown.apply(frames[1]), "pool") if row["owners"]]
    assert [(row["owners"], row["fill"], row["mark"]) for row in rows] == [
        ([0, 1, 2], 4, "found"),
        ([0], 3, ""),  # its seventh token is already computed
        ([1], 2, "copied"),
        ([2], 2, "copied"),
    ]
    assert shown.say.endswith("copy on write.")
    assert shown.readouts["found"] == ["10", "tok", "of 18"]


def test_what_happens_to_a_block_is_marked_for_one_frame() -> None:
    jobs = [job(LETTERS[4] * 6, 3, 5, continuations=3), *(job(LETTERS[i % 3] * 6, 14, i) for i in range(5))]
    steps = ran(jobs, num_blocks=14, enable_prefix_caching=True)
    marks = {"found": BlockShared, "copied": BlockCopied, "evicted": BlockEvicted}
    seen, shown = dict.fromkeys([*marks, "preempted"], 0), picture()
    for frame, step in zip(BatchReducer(8).feed(steps), [*steps, BatchStep([], True)], strict=True):
        rows = table(shown.apply(frame), "pool")
        marked = {mark: {i for i, row in enumerate(rows) if row["mark"] == mark} for mark in seen}
        events = [entry.event for entry in step.entries]
        happened = {mark: {e.block for e in events if isinstance(e, kind)} for mark, kind in marks.items()}
        happened["found"] -= {e.source for e in events if isinstance(e, BlockCopied)}
        for mark, blocks in happened.items():
            assert marked[mark] <= blocks  # several things may happen to a block in one step: the last is marked
        assert set.union(*marked.values()) >= set.union(*happened.values())
        assert bool(marked["preempted"]) <= any(isinstance(event, Preempted) for event in events)
        for mark in seen:
            seen[mark] += len(marked[mark])
    assert all(seen.values()), seen


def test_of_a_sequence_that_is_over_or_in_another_pool_nothing_is_kept() -> None:
    """A workshop's pool sees all runs of a day."""
    blocks, pair = BlockMap(4, 2), (taken(1, 0, 0), freed(1, 0, owner=0))
    for last in (PREEMPTED, ELSEWHERE):
        for event in (*pair, last):
            blocks.take(0, event)
        assert remembered(blocks) == {0}
        if last is ELSEWHERE:
            blocks.take(0, pair[0])
            assert blocks.occupancy() == (4, 0, 0)
        blocks.take(0, OVER)
        assert remembered(blocks) == set()
    for event in (pair[0], OVER):  # which only a damaged file says
        blocks.take(0, event)
    assert blocks.held(0) == 1
