"""The pool of many sequences: whatever the engine does with it, the squares show what it holds."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given, settings

from lab.measure.workload import PlannedRequest
from lab.trace.events import (
    Admitted,
    BlockAllocated,
    BlockCopied,
    BlockEvicted,
    BlockFreed,
    BlockShared,
    CacheDropped,
    Committed,
    FellBack,
    Finished,
    Preempted,
    RunStarted,
    StepTimed,
)
from lab.trace.recorder import BatchStep
from tests.visualize.crowd import LETTERS, job, lengths, picture, ran, runs, table
from tests.visualize.picture import apply
from visualize.pages.pool.pool_frames import BatchReducer
from visualize.reduce.block_map import FREE_ROW, PoolBlocks


def remembered(blocks: PoolBlocks) -> set[int]:
    """The sequences of which it still keeps something."""
    held = {owner for owners in blocks.owners.values() for owner in owners}
    return held.union(blocks.tables, blocks._kept, blocks._giving_up, blocks._elsewhere)


@settings(max_examples=60, deadline=None)
@given(runs())
def test_the_squares_show_what_the_pool_holds_at_every_step(
    run: tuple[list[PlannedRequest], list[BatchStep], int],
) -> None:
    jobs, steps, num_blocks = run
    frames = BatchReducer(len(lengths(jobs))).feed(steps)
    shown, owners = picture(), defaultdict(list)  # block -> sequences, from the events alone
    for frame, step in zip(frames, steps, strict=False):
        live = None  # while the step is computed
        for owner, event in ((entry.owner, entry.event) for entry in step.entries):
            if live is None and isinstance(event, Committed | StepTimed):
                live = sum(map(bool, owners.values()))
            if isinstance(event, BlockAllocated | BlockShared | BlockCopied):
                owners[event.block].append(owner)
            elif isinstance(event, BlockFreed):
                owners[event.block].remove(owner)
        rows = table(shown.apply(frame), "pool")
        assert [sorted(row["owners"]) for row in rows] == [sorted(owners[block]) for block in range(num_blocks)]
        states = [row["state"] for row in rows]
        assert len(rows) == num_blocks
        for row in rows:
            assert (row["state"] == "live") == bool(row["owners"])
            assert 0 <= row["fill"] <= frames[0]["head"]["block_size"]
            assert row["fill"] == 0 or row["owners"]
        stacked = [shown.columns["occupancy"][trace]["y"][-1] for trace in range(3)]
        assert stacked[0] == live > 0
        assert sum(stacked) == num_blocks
        assert shown.captions["pool"].startswith(f"{states.count('live')} in use")
        held = {row["number"]: row["blocks"] for row in table(shown, "sequences")}
        assert held == {owner: sum(held.count(owner) for held in owners.values()) for owner in held}


@settings(max_examples=60, deadline=None)
@given(runs())
def test_the_squares_agree_with_the_pool_reported_at_each_admission(
    run: tuple[list[PlannedRequest], list[BatchStep], int],
) -> None:
    """Every admission lists the pool's live and cached blocks as they were just before."""
    _, steps, num_blocks = run
    started = next(entry.event for entry in steps[0].entries if isinstance(entry.event, RunStarted))
    blocks = PoolBlocks(num_blocks, started.config["block_size"])
    for entry in (entry for step in steps for entry in step.entries):
        if isinstance(entry.event, Admitted):
            assert blocks.owners.keys() == set(entry.event.live_blocks)
            assert blocks.cached == set(entry.event.cached_blocks)
        blocks.take(entry.owner, entry.event)
        assert sum(blocks.occupancy()) == num_blocks
        assert min(blocks.occupancy()) >= 0
    assert blocks.occupancy().live == 0
    assert remembered(blocks) == set()


def test_a_shared_block_shows_the_fill_of_the_owner_using_most() -> None:
    jobs = [job(LETTERS[0] * 9, 12, seed) for seed in (0, 1)]
    steps = ran(jobs, every=2, block_size=4, num_blocks=20, enable_prefix_caching=True)
    shown, most = picture(), 0
    for frame in BatchReducer(2).feed(steps):
        for row in table(shown.apply(frame), "pool"):
            if len(row["owners"]) == 2:
                most += 1
                assert row["fill"] == 4
    assert most


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


def test_contiguous_blocks_are_reserved_empty() -> None:
    frames = BatchReducer(1).feed(ran([job("ab", 16)], paged=False, num_blocks=10))
    first = table(picture().apply(frames[0]), "pool")
    assert [row["fill"] for row in first if row["owners"]] == [2] + [0] * 8
    assert frames[0]["readouts"]["vain"][:2] == ["89", "%"]
    assert frames[0]["readouts"]["found"] == ["0", "tok", "of 2"]


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


def test_a_block_that_others_still_hold_is_not_marked_as_preempted() -> None:
    blocks = PoolBlocks(4, 2)
    blocks.take(0, BlockAllocated(t_ms=0, block=1, owner=0, index=0, fill=2))
    blocks.take(1, BlockShared(t_ms=0, block=1, owner=1, index=0, fill=2, references=2))
    blocks.take(1, BlockAllocated(t_ms=0, block=2, owner=1, index=1, fill=1))
    columns = blocks.columns()
    apply(columns, blocks.patches())
    blocks.take(1, Preempted(t_ms=0, tokens=3))
    for block, index, references in ((2, 1, 0), (1, 0, 1)):
        freed = BlockFreed(t_ms=0, block=block, owner=1, index=index, fill=1, references=references, cached=False)
        blocks.take(1, freed)
    apply(columns, blocks.patches())
    assert columns[0]["state"] == ["free", "live", "free", "free"]
    assert columns[0]["mark"] == ["", "", "preempted", ""]


def test_a_sequence_that_fell_back_to_another_format_leaves_this_pool() -> None:
    blocks = PoolBlocks(4, 2)
    taken = BlockAllocated(t_ms=0, block=1, owner=0, index=0, fill=0)
    freed = BlockFreed(t_ms=0, block=1, owner=0, index=0, fill=0, references=0, cached=False)
    for event in (taken, freed, FellBack(t_ms=0, part="kv_format", reason=""), taken):
        blocks.take(0, event)
    assert blocks.occupancy() == (4, 0, 0)


def test_of_a_sequence_that_is_over_nothing_is_kept() -> None:
    """A workshop's pool sees all runs of a day."""
    blocks = PoolBlocks(4, 2)
    taken = BlockAllocated(t_ms=0, block=1, owner=0, index=0, fill=0)
    freed = BlockFreed(t_ms=0, block=1, owner=0, index=0, fill=0, references=0, cached=False)
    over = Finished(t_ms=0, reason="cancelled", text="", message="")
    for last in (Preempted(t_ms=0, tokens=1), FellBack(t_ms=0, part="kv_format", reason="")):
        for event in (taken, freed, last):
            blocks.take(0, event)
        assert remembered(blocks) == {0}
        blocks.take(0, over)
        assert remembered(blocks) == set()
    for event in (taken, over):  # which only a damaged file says
        blocks.take(0, event)
    assert blocks.held(0) == 1
    blocks.take(0, freed)
    assert blocks.occupancy() == (4, 0, 0)


def test_new_weights_empty_the_prefix_cache() -> None:
    blocks = PoolBlocks(4, 2)
    blocks.take(0, BlockAllocated(t_ms=0, block=1, owner=0, index=0, fill=0))
    blocks.take(0, BlockFreed(t_ms=0, block=1, owner=0, index=0, fill=2, references=0, cached=True))
    columns = blocks.columns()
    apply(columns, blocks.patches())
    assert columns[0]["state"] == ["free", "cached", "free", "free"]
    blocks.take(0, CacheDropped(t_ms=0, reason=""))
    apply(columns, blocks.patches())
    assert {name: values[1] for name, values in columns[0].items()} == FREE_ROW
