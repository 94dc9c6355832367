"""Many sequences, reduced: whatever an engine does with them, the page shows what its pool and its queue hold.

The engine is the real one; its model has no weights (``tests.scripted_model``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.bench.arrivals import Step, arrivals
from lab.bench.workload import Job
from lab.config import EngineConfig, SamplingParams
from lab.decode.engine import Engine
from lab.trace.events import (
    Admitted,
    BlockAllocated,
    BlockCopied,
    BlockEvicted,
    BlockFreed,
    BlockShared,
    CacheDropped,
    FellBack,
    Preempted,
    RunStarted,
    from_dict,
)
from lab.trace.recorder import Entry, Run
from tests import tiny_models
from tests.scripted_model import RememberingModel
from tests.tiny_models import tokenizer
from visualize.batch.blocks import FREE, Blocks
from visualize.batch.frames import BatchReducer
from visualize.batch.inputs import Inputs
from visualize.batch.live import BatchRun, as_json
from visualize.batch.narrate import said
from visualize.figures import apply
from visualize.figures import batch as figures
from visualize.figures.base import draw
from visualize.live import Line, transcript
from visualize.picture import Picture

WORDS = 8
LETTERS = tokenizer().decode(list(range(WORDS)))
HOSTILE = "<img src=x onerror=window.pwned=1>\u202e"


def engine() -> Engine:
    target, draft = (RememberingModel(257, WORDS, salt=salt, context_length=40) for salt in (0, 1))
    return Engine(target, tokenizer(), draft)


ENGINE = engine()


def job(prompt: str, tokens: int, seed: int = 0) -> Job:
    return Job(prompt, SamplingParams(max_tokens=tokens, temperature=1.0, seed=seed, ignore_eos=True))


def ran(jobs: list[Job], every: int = 0, seats: int = 8, **pool: Any) -> list[Step]:
    config = EngineConfig(**({"paged": True, "block_size": 2} | pool))
    return list(arrivals(ENGINE, jobs, config, every=every, max_num_seqs=seats))


JOBS = st.lists(
    st.builds(job, st.text(alphabet=LETTERS[:2], min_size=1, max_size=12), st.integers(1, 16), st.integers(0, 9)),
    min_size=1,
    max_size=7,
)
POOLS = st.one_of(
    st.fixed_dictionaries({"block_size": st.sampled_from([1, 2, 4]), "paged": st.just(False)}),
    st.fixed_dictionaries(
        {
            "block_size": st.sampled_from([1, 2, 4]),
            "enable_prefix_caching": st.booleans(),
            "speculative": st.sampled_from(["off", "draft", "ngram"]),
            "prompt_lookup_min": st.just(1),
        }
    ),
)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Job], list[Step], int]:
    """What was asked, what happened, and the size of the pool: as large as the longest needs, and hardly larger."""
    jobs, pool = draw(JOBS), draw(POOLS)
    num_blocks = -(-28 // pool["block_size"]) + draw(st.integers(0, 5))
    steps = ran(jobs, draw(st.integers(0, 4)), draw(st.integers(1, 5)), num_blocks=num_blocks, **pool)
    return jobs, steps, num_blocks


def picture() -> Picture:
    return Picture(figures.columns())


def table(shown: Picture, name: str) -> list[dict[str, Any]]:
    """A table of the page as rows."""
    columns = shown.columns[name][0]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


# -- the pool --------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(runs())
def test_the_squares_are_what_the_pool_holds_at_every_step(run: tuple[list[Job], list[Step], int]) -> None:
    jobs, steps, num_blocks = run
    frames = BatchReducer(len(jobs)).feed(steps)
    shown, owners = picture(), defaultdict(list)  # block -> sequences, by the events alone
    for frame, step in zip(frames, steps, strict=False):
        for owner, event in ((entry.owner, entry.event) for entry in step.entries):
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
        assert stacked == [states.count(state) for state in ("live", "cached", "free")]
        assert sum(stacked) == num_blocks
        assert shown.captions["pool"].startswith(f"{states.count('live')} live")
        held = {row["number"]: row["blocks"] for row in table(shown, "sequences")}
        assert held == {owner: sum(held.count(owner) for held in owners.values()) for owner in held}


@settings(max_examples=60, deadline=None)
@given(runs())
def test_it_agrees_with_what_the_engine_says_of_its_pool(run: tuple[list[Job], list[Step], int]) -> None:
    """Every admission tells the whole pool as it was just before."""
    _, steps, num_blocks = run
    started = next(entry.event for entry in steps[0].entries if isinstance(entry.event, RunStarted))
    blocks = Blocks(num_blocks, started.config["block_size"])
    for entry in (entry for step in steps for entry in step.entries):
        if isinstance(entry.event, Admitted):
            assert blocks.owners.keys() == set(entry.event.live_blocks)
            assert blocks.cached == set(entry.event.cached_blocks)
        blocks.take(entry.owner, entry.event)
        assert sum(blocks.occupancy()) == num_blocks
        assert min(blocks.occupancy()) >= 0
    assert blocks.occupancy().live == 0


def test_fill_is_that_of_the_one_who_wants_most_of_a_block() -> None:
    jobs = [job(LETTERS[0] * 9, 12, seed) for seed in (0, 1)]
    steps = ran(jobs, every=2, block_size=4, num_blocks=20, enable_prefix_caching=True)
    shown, most = picture(), 0
    for frame in BatchReducer(2).feed(steps):
        for row in table(shown.apply(frame), "pool"):
            if len(row["owners"]) == 2:
                most += 1
                assert row["fill"] == 4
    assert most


def test_contiguous_blocks_are_set_aside_empty() -> None:
    frames = BatchReducer(1).feed(ran([job("ab", 16)], paged=False, num_blocks=10))
    first = table(picture().apply(frames[0]), "pool")
    assert [row["fill"] for row in first if row["owners"]] == [2] + [0] * 8
    assert frames[0]["readouts"]["vain"][:2] == ["89", "%"]


def test_what_becomes_of_a_block_is_marked_for_one_frame() -> None:
    steps = ran([job(LETTERS[i % 3] * 6, 14, i) for i in range(5)], num_blocks=14, enable_prefix_caching=True)
    marks = {"found": BlockShared, "evicted": BlockEvicted}
    seen, shown = dict.fromkeys([*marks, "preempted"], 0), picture()
    for frame, step in zip(BatchReducer(5).feed(steps), [*steps, Step([], True)], strict=True):
        rows = table(shown.apply(frame), "pool")
        marked = {mark: {i for i, row in enumerate(rows) if row["mark"] == mark} for mark in seen}
        events = [entry.event for entry in step.entries]
        happened = {mark: {e.block for e in events if isinstance(e, kind)} for mark, kind in marks.items()}
        for mark, blocks in happened.items():
            assert marked[mark] <= blocks  # several things may become of a block in one step: the last is marked
        assert set.union(*marked.values()) >= set.union(*happened.values())
        assert bool(marked["preempted"]) <= any(isinstance(event, Preempted) for event in events)
        for mark in seen:
            seen[mark] += len(marked[mark])
    assert all(seen.values()), seen


def test_a_sequence_that_fell_back_to_another_format_is_no_longer_of_this_pool() -> None:
    blocks = Blocks(4, 2)
    taken = BlockAllocated(t_ms=0, block=1, owner=0, index=0, fill=0)
    freed = BlockFreed(t_ms=0, block=1, owner=0, index=0, fill=0, references=0, cached=False)
    for event in (taken, freed, FellBack(t_ms=0, part="kv_format", reason=""), taken):
        blocks.take(0, event)
    assert blocks.occupancy() == (4, 0, 0)


def test_other_weights_leave_nothing_cached() -> None:
    blocks = Blocks(4, 2)
    blocks.take(0, BlockAllocated(t_ms=0, block=1, owner=0, index=0, fill=0))
    blocks.take(0, BlockFreed(t_ms=0, block=1, owner=0, index=0, fill=2, references=0, cached=True))
    columns = blocks.columns()
    apply(columns, blocks.patches())
    assert columns[0]["state"] == ["free", "cached", "free", "free"]
    blocks.take(0, CacheDropped(t_ms=0, reason=""))
    apply(columns, blocks.patches())
    assert {name: values[1] for name, values in columns[0].items()} == FREE


# -- queue and batch -------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(runs())
def test_the_queue_and_the_batch_are_the_scheduler_s(run: tuple[list[Job], list[Step], int]) -> None:
    jobs, steps, _ = run
    waiting: set[int] = set()
    running: set[int] = set()
    frames = BatchReducer(len(jobs)).feed(steps)
    shown = picture()
    for frame, step in zip(frames, steps, strict=False):
        for owner, event in ((entry.owner, entry.event) for entry in step.entries):
            match event:
                case RunStarted():
                    waiting.add(owner)
                case Admitted():
                    assert owner == min(waiting), "the queue is in the order of arrival"
                    waiting.discard(owner)
                    running.add(owner)
                    assert (len(running), len(waiting)) == (event.running, event.waiting)
                case Preempted():
                    assert owner == max(running), "the newest is preempted"
                    running.discard(owner)
                    waiting.add(owner)
                case _ if event.kind == "finished":
                    running.discard(owner)
        rows = table(shown.apply(frame), "sequences")
        assert {row["number"] for row in rows if row["state"] == "waiting"} == waiting
        assert {row["number"] for row in rows if row["state"] == "running"} == running
        assert [trace["y"][-1] for trace in shown.columns["queue"]] == [len(running), len(waiting)]
    shown.apply(frames[-1])
    assert shown.finished == {"reason": "over", "message": ""}
    rows = table(shown, "sequences")
    assert [row["tokens"] for row in rows] == [job.sampling.max_tokens for job in jobs]
    assert shown.readouts["finished"][0] == f"{len(jobs)} / {len(jobs)}"
    events = [entry.event for step in steps for entry in step.entries]
    for key, kind in (("preempted", Preempted), ("evicted", BlockEvicted)):
        assert shown.readouts[key][0] == str(sum(isinstance(event, kind) for event in events))
    assert sum(row["preempted"] for row in rows) == int(shown.readouts["preempted"][0])


@settings(max_examples=30, deadline=None)
@given(runs(), st.data())
def test_frames_do_not_depend_on_the_portions(run: tuple[list[Job], list[Step], int], data: st.DataObject) -> None:
    jobs, steps, _ = run
    whole = BatchReducer(len(jobs)).feed(steps)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(steps)))))
    reducer, frames = BatchReducer(len(jobs)), []
    for start, stop in zip([0, *cuts], [*cuts, len(steps)], strict=True):
        frames += reducer.feed(steps[start:stop])
    assert frames == whole
    assert [frame["seq"] for frame in frames] == list(range(len(steps) + 1))
    assert json.loads(json.dumps(frames)) == frames


def test_each_one_s_text_is_there() -> None:
    jobs = [job(LETTERS[:2], 5 + i, i) for i in range(4)]
    steps = ran(jobs, every=1)
    runs = defaultdict(list)
    for entry in (entry for step in steps for entry in step.entries):
        runs[entry.owner].append(entry.event)
    shown = picture()
    for frame in BatchReducer(4).feed(steps):
        shown.apply(frame)
    for owner, events in runs.items():
        assert "".join(t["text"] for t in shown.tokens if t["owner"] == owner) == Run(events).text


# -- numbers and words -----------------------------------------------------------------------


def test_numbers_come_from_the_events_and_stand_beside_those_of_the_run_before() -> None:
    steps = ran([job("ab", 8, i) for i in range(3)], every=2)
    reducer = BatchReducer(3)
    shown = picture()
    for frame in reducer.feed(steps):
        shown.apply(frame)
    seconds = (steps[-1].entries[-1].t_ms - steps[0].entries[0].t_ms) / 1000
    assert shown.readouts["speed"][:2] == [f"{24 / seconds:,.0f}", "tok/s"]
    assert shown.say == f"Over: 3 sequences, 24 tokens in {seconds:.2f} s: {24 / seconds:,.0f} a second."
    again = BatchReducer(3, reducer.after()).feed(steps)
    assert again[0]["readouts"]["speed"][2].startswith("was ")
    assert again[-1]["readouts"]["speed"][2].startswith("×1 of ")


def sentence(*events: tuple[int, Any], tokens: dict[int, int] | None = None) -> str:
    return said([Entry(0.0, owner, event) for owner, event in events], tokens or {})[0]


def freed(owner: int, block: int, cached: bool = False) -> BlockFreed:
    return BlockFreed(t_ms=0, block=block, owner=owner, index=0, fill=0, references=0, cached=cached)


def test_the_rarest_is_said_first() -> None:
    gone = Preempted(t_ms=0, tokens=9)
    joined = Admitted(t_ms=0, owner=3, running=1, waiting=0, cached_tokens=32, live_blocks=(), cached_blocks=())
    blocks = [(7, freed(7, block)) for block in range(5)]
    assert sentence((7, gone), *blocks) == ("Sequence 7 was preempted: its 5 blocks went back; it waits at the front.")
    assert sentence((7, gone), *blocks, (6, gone), (6, freed(6, 9)), (3, joined)) == (
        "Sequences 7 and 6 were preempted: their 6 blocks went back; they wait at the front. "
        "Sequence 3 was admitted: 32 tokens found in the cache, not computed."
    )
    evicted = [(4, BlockEvicted(t_ms=0, block=block)) for block in range(3)]
    assert sentence(*evicted) == "3 cached blocks were evicted to make room for sequence 4."
    assert sentence(*[(owner, joined) for owner in range(6)]).startswith(
        "Sequences 0, 1, 2 and 3 more were admitted: 192 tokens found"
    )


def test_a_run_of_many_says_something_at_every_step() -> None:
    frames = BatchReducer(5).feed(ran([job(LETTERS[:3], 9, i) for i in range(5)], every=2, seats=2))
    shown, words = picture(), set()
    for frame in frames:
        words.add(shown.apply(frame).say.split(" ")[0])
        assert shown.say.endswith(".")
    assert {"Sequence", "One", "Over:"} <= words


def test_what_a_person_writes_is_text() -> None:
    lab = ENGINE
    steps = [
        Step(
            [
                Entry(0.0, 0, event)
                for event in lab.stream("ab", EngineConfig(paged=True), SamplingParams(max_tokens=2))
            ],
            True,
        )
    ]
    started = steps[0].entries[0].event
    object.__setattr__(started, "prompt", HOSTILE)
    [row] = table(picture().apply(BatchReducer(1).feed(steps)[0]), "sequences")
    assert row["prompt"] == HOSTILE.replace("\u202e", "⟨RLO⟩")


# -- charts, and the file --------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True])
def test_charts_can_be_drawn(dark: bool) -> None:
    shown = picture()
    for frame in BatchReducer(3).feed(ran([job("ab", 9, i) for i in range(3)], every=1)):
        shown.apply(frame)
    for name, make in figures.CHARTS.items():
        figure = draw(make(dark), shown.columns[name], shown.layout[name])
        last = shown.columns[name][0]["x"][-1]
        assert figure.layout.xaxis.range[1] >= last > 0
        assert all(y <= figure.layout.yaxis.range[1] for trace in figure.data for y in trace.y)


def test_the_file_holds_every_event_with_its_step_and_its_owner_on_one_clock() -> None:
    steps = ran([job("ab", 4, i) for i in range(2)])
    records = json.loads(as_json(steps))["entries"]
    read = [
        [Entry(r["clock_ms"], r["owner"], from_dict(r["event"])) for r in records if r["step"] == number]
        for number in range(len(steps))
    ]
    assert read == [step.entries for step in steps]


# -- a run under way -------------------------------------------------------------------------


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def run(**inputs: Any) -> BatchRun:
    lab = tiny_models.engine("llama", "good")
    asked = {"sequences": 3, "every": 1, "lengths": "equal", "shared": False, "max_num_seqs": 2}
    return BatchRun(Line(), lambda pair: lab, Inputs(**asked | inputs))


def test_many_are_told_to_their_end() -> None:
    under_way = run(tokens=12)
    told = records("".join(transcript(under_way, BatchReducer(3))))
    shown = picture()
    for record in told:
        shown.apply(record)
    assert shown.finished
    assert shown.readouts["finished"][0] == "3 / 3"
    assert len(told) == len(under_way.events) + 1  # and the end


def test_many_can_be_stopped() -> None:
    under_way = run(tokens=64)
    told = ""
    for news in transcript(under_way, BatchReducer(3)):
        told += news
        if '"tokens"' in news:
            under_way.cancelled.set()
    shown = picture()
    for record in records(told):
        shown.apply(record)
    assert shown.finished
    assert "cancelled" in {row["state"] for row in table(shown, "sequences")}
    assert {row["state"] for row in table(shown, "pool")} <= {"free", "cached"}


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"sequences": 40}, "Sequences: a whole number from 1 to 32"),
        ({"pool_blocks": 8}, "blocks"),
        ({"paged": False}, "Set paged=True"),
    ],
)
def test_what_cannot_be_is_a_sentence(inputs: dict[str, Any], says: str) -> None:
    text = "".join(transcript(run(**inputs), BatchReducer(3)))
    assert says in records(text)[-1]["problem"]
