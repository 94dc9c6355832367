"""Many sequences, reduced: the queue and the batch, numbers and words, charts, and a live run."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.config import EngineConfig, SamplingParams
from lab.measure.workload import PlannedRequest
from lab.trace.events import (
    Admitted,
    BlockEvicted,
    CacheDropped,
    Committed,
    FellBack,
    Finished,
    Preempted,
    Proposed,
    RunStarted,
    StepTimed,
)
from lab.trace.recorder import BatchEvent, BatchStep
from tests import tiny_models
from tests.visualize.crowd import ENGINE, LETTERS, job, lengths, picture, ran, runs, table
from tests.visualize.picture import apply, draw
from visualize.charts import pool_charts as figures
from visualize.format_numbers import three
from visualize.jobs.job_queue import JobQueue
from visualize.pages.pool.page import BatchRun
from visualize.pages.pool.pool_frames import SMOOTH, BatchReducer
from visualize.pool_inputs import PoolInputs
from visualize.reduce.frames import lines
from visualize.reduce.sequence_table import Sequences

HOSTILE = "<img src=x onerror=window.pwned=1>\u202e"

# -- queue and batch -------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(runs())
def test_the_queue_and_the_batch_match_the_schedulers(run: tuple[list[PlannedRequest], list[BatchStep], int]) -> None:
    jobs, steps, _ = run
    waiting: set[int] = set()
    running: set[int] = set()
    most = 0
    speculates = steps[0].entries[0].event.config["speculative"] != "off"
    frames = BatchReducer(len(lengths(jobs))).feed(steps)
    shown = picture()
    for frame, step in zip(frames, steps, strict=False):
        for owner, event in ((entry.owner, entry.event) for entry in step.entries):
            match event:
                case RunStarted():
                    waiting.add(owner)
                case Admitted():
                    assert owner == min(waiting), "the queue is in order of arrival"
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
        computed = {entry.owner for entry in step.entries if isinstance(entry.event, StepTimed)}
        ended = {entry.owner for entry in step.entries if entry.event.kind == "finished"}
        drafted = Counter(entry.owner for entry in step.entries if isinstance(entry.event, Proposed))
        most_drafted = max(drafted.values(), default=0) if speculates else None
        during = [len(computed), len(waiting), most_drafted]
        assert [trace["y"][-1] for trace in shown.columns["queue"]] == during, "during the step"
        assert computed == running | ended
        assert shown.columns["occupancy"][0]["y"][-1] > 0
        most = max(most, len(computed))
        assert shown.readouts["most"][0] == str(most)
    shown.apply(frames[-1])
    assert [trace["y"][-1] for trace in shown.columns["queue"]] == [0, 0, 0 if speculates else None]
    assert shown.finished == {"reason": "over", "message": ""}
    rows = table(shown, "sequences")
    assert [row["tokens"] for row in rows] == lengths(jobs)
    assert shown.readouts["finished"][0] == f"{len(rows)} / {len(rows)}"
    events = [entry.event for step in steps for entry in step.entries]
    for key, kind in (("preempted", Preempted), ("evicted", BlockEvicted)):
        assert shown.readouts[key][0] == str(sum(isinstance(event, kind) for event in events))
    assert sum(row["preempted"] for row in rows) == int(shown.readouts["preempted"][0])


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(runs(), st.data())
def test_frames_do_not_depend_on_how_steps_are_cut(
    run: tuple[list[PlannedRequest], list[BatchStep], int], data: st.DataObject
) -> None:
    jobs, steps, _ = run
    whole = BatchReducer(len(lengths(jobs))).feed(steps)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(steps)))))
    reducer, frames = BatchReducer(len(lengths(jobs))), []
    for start, stop in zip([0, *cuts], [*cuts, len(steps)], strict=True):
        frames += reducer.feed(steps[start:stop])
    assert frames == whole
    assert [frame["seq"] for frame in frames] == list(range(len(steps) + 1))
    assert [frame["step"] for frame in frames] == [*range(len(steps)), -1]
    assert json.loads(json.dumps(frames)) == frames


JOINED = Admitted(t_ms=0, owner=3, running=1, waiting=0, cached_tokens=0, live_blocks=(), cached_blocks=())


def test_what_became_of_a_sequence_is_in_its_row_whatever_its_number() -> None:
    begun = ran([job("ab", 1)])[0].entries[0].event
    became = {
        "waiting": CacheDropped(t_ms=0, reason="The weights have changed."),
        "failed": Finished(t_ms=0, reason="error", text="", message="The device ran out of memory."),
        "cancelled": Finished(t_ms=0, reason="cancelled", text="", message=""),
        "finished": Finished(t_ms=0, reason="length", text="", message=""),
    }
    sequences, columns, owners = Sequences(), Sequences.columns(), (9, 3, 5, 8)
    for events in ([begun] * 4, [JOINED] * 4, became.values()):
        for owner, event in zip(owners, events, strict=True):
            sequences.take(owner, event)
        assert sequences.changed() == list(owners)
        apply(columns, sequences.patches())
        assert sequences.changed() == []
    assert columns[0]["number"] == list(owners)
    assert columns[0]["wanted"] == [1] * 4
    assert columns[0]["state"] == list(became)
    assert sequences.counts() == dict.fromkeys(became, 1)


def test_a_sequence_that_falls_back_to_another_kv_format_waits_until_it_is_admitted_again() -> None:
    sequences = Sequences()
    for event in (ran([job("ab", 1)])[0].entries[0].event, JOINED):
        sequences.take(0, event)
    sequences.take(0, FellBack(t_ms=0, part="kernel", reason="It does not compile."))
    assert sequences.counts() == {"running": 1}, "it goes on where it is"
    sequences.take(0, FellBack(t_ms=0, part="kv_format", reason="A step failed."))
    assert sequences.counts() == {"waiting": 1}
    sequences.take(0, JOINED)
    assert sequences.counts() == {"running": 1}


# -- numbers and words -----------------------------------------------------------------------


def test_numbers_come_from_the_events_and_are_compared_with_the_previous_run() -> None:
    steps = ran([job("ab", 8, i) for i in range(3)], every=2)
    asked = PoolInputs(sequences=3)
    reducer = BatchReducer(3, asked.asked())
    shown = picture()
    for frame in reducer.feed(steps):
        shown.apply(frame)
    seconds = (steps[-1].entries[-1].t_ms - steps[0].entries[0].t_ms) / 1000
    assert shown.readouts["speed"][:2] == [three(24 / seconds), "tok/s"]
    assert f"24 tokens in {seconds:.2f} s ({three(24 / seconds)} tok/s)" in shown.say
    otherwise = replace(asked, paged=False, kv_dtype="int8", max_num_seqs=1).asked()
    again = BatchReducer(3, otherwise, reducer.after()).feed(steps)
    assert again[0]["readouts"]["speed"][2].startswith("was ")
    assert again[0]["compared"].count(" → ") == 3
    assert again[-1]["readouts"]["speed"][2] == "the same"
    other = BatchReducer(3, replace(asked, tokens=9).asked(), reducer.after()).feed(steps)
    assert "compared" not in other[0]
    small = {row[2] for frame in other for row in frame.get("readouts", {}).values()}
    assert small <= {""} | {f"of {tokens}" for tokens in (2, 4, 6)}


def test_the_speed_is_the_mean_over_the_last_steps_from_the_first_arrival_on() -> None:
    ran_at_once = ran([job("ab", 24, i) for i in range(3)], every=2)
    steps = [  # on a clock that began a second earlier
        step._replace(entries=[entry._replace(t_ms=entry.t_ms + 1000) for entry in step.entries])
        for step in ran_at_once
    ]
    shown = picture()
    for frame in BatchReducer(3).feed(steps):
        shown.apply(frame)
    timed = [step for step in steps if step.entries]
    at = [timed[0].entries[0].t_ms, *(step.entries[-1].t_ms for step in timed)]
    made = [sum(len(e.event.token_ids) for e in step.entries if isinstance(e.event, Committed)) for step in timed]
    drawn = shown.columns["speed"][0]["y"]
    assert drawn[0] == pytest.approx(1000 * made[0] / (at[1] - at[0]), rel=0.01, abs=0.6)
    for last in (SMOOTH + 2, len(timed) - 1):
        mean = 1000 * sum(made[last + 1 - SMOOTH : last + 1]) / (at[last + 1] - at[last + 1 - SMOOTH])
        assert drawn[last] == pytest.approx(mean, rel=0.01)


def test_cached_tokens_found_after_a_preemption_are_counted_separately() -> None:
    jobs = [job(LETTERS[0] * 8, 12, seed) for seed in range(4)]
    steps = ran(jobs, every=1, num_blocks=14, enable_prefix_caching=True)
    found: dict[int, list[int]] = defaultdict(list)
    for entry in (entry for step in steps for entry in step.entries):
        if isinstance(entry.event, Admitted):
            found[entry.owner].append(entry.event.cached_tokens)
    first = sum(each[0] for each in found.values())
    again = sum(sum(each[1:]) for each in found.values())
    assert min(first, again) > 0
    shown = picture()
    for frame in BatchReducer(4).feed(steps):
        shown.apply(frame)
    assert shown.readouts["found"] == [str(first), "tok", "of 32"]
    assert shown.readouts["preempted"][2] == f"{again} found"
    assert {row["number"]: row["found"] for row in table(shown, "sequences")} == {
        owner: each[-1] for owner, each in found.items()
    }


def test_failed_and_stopped_sequences_are_done_too() -> None:
    steps, reasons = ran([job("ab", 3, i) for i in range(3)]), iter(("length", "error", "cancelled"))
    shown = picture()
    for frame in BatchReducer(4).feed(
        step._replace(
            entries=[
                entry._replace(event=replace(entry.event, reason=next(reasons)))
                if isinstance(entry.event, Finished)
                else entry
                for entry in step.entries
            ]
        )
        for step in steps
    ):
        shown.apply(frame)
    assert shown.captions["done"] == "3 of 4"
    assert shown.readouts["finished"][0] == "1 / 4"
    assert shown.say.startswith("Ended early: 1 of 4 "), shown.say


def test_hostile_prompts_and_tokens_stay_text() -> None:
    hostile = {RunStarted: {"prompt": HOSTILE}, Committed: {"text": HOSTILE}}
    events = ENGINE.stream("ab", EngineConfig(paged=True), SamplingParams(max_tokens=1))
    entries = [BatchEvent(0.0, 0, replace(event, **hostile.get(type(event), {}))) for event in events]
    shown = picture().apply(BatchReducer(1).feed([BatchStep(entries, True)])[0])
    text = HOSTILE.replace("\u202e", "⟨RLO⟩")
    assert [row["prompt"] for row in table(shown, "sequences")] == [text]
    assert [token["text"] for token in shown.tokens] == [text]


# -- charts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True])
def test_charts_can_be_drawn(dark: bool) -> None:
    shown, reducer = picture(), BatchReducer(3)
    for step in ran([job("ab", 9, i) for i in range(3)], every=1, speculative="draft", num_speculative_tokens=6):
        slower = [entry._replace(t_ms=entry.t_ms**2) for entry in step.entries]  # than the step before
        for frame in reducer.feed([step._replace(entries=slower)]):
            shown.apply(frame)
    for name, make in figures.CHARTS.items():
        figure = draw(make(dark), shown.columns[name], shown.layout[name])
        last = shown.columns[name][0]["x"][-1]
        assert figure.layout.xaxis.range[1] >= last > 0
        assert all(y <= figure.layout.yaxis.range[1] for trace in figure.data for y in trace.y)


def test_what_ran_in_a_step_is_drawn_over_the_time_it_took() -> None:
    """All that run may end in one step: in the next, which may take long, others run."""
    steps, shown = ran([job("ab", 9, i) for i in range(4)], seats=2), picture()
    for frame in BatchReducer(4).feed(steps):
        shown.apply(frame)
    ends = [round((step.entries[-1].t_ms - steps[0].entries[0].t_ms) / 1000, 4) for step in steps]
    for name in ("queue", "occupancy"):
        assert {trace.line.shape for trace in figures.CHARTS[name]().data} == {"vh"}, "a point is where its step ended"
        assert all(trace["x"] == [0, *ends, ends[-1]] for trace in shown.columns[name])
    running, waiting, drafted = (trace["y"] for trace in shown.columns["queue"])
    assert not any(drafted)
    assert running == [2] * (len(steps) + 1) + [0]
    assert waiting == [2] * 10 + [0] * 10
    live, cached, free = (trace["y"] for trace in shown.columns["occupancy"])
    assert all(live[:-1])
    assert live[-1] == 0
    assert {sum(states) for states in zip(live, cached, free, strict=True)} == {sum((live[0], cached[0], free[0]))}


# -- a live run ------------------------------------------------------------------------------


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def run(**inputs: Any) -> BatchRun:
    lab = tiny_models.engine("llama", "good")
    asked = {"sequences": 3, "every": 1, "lengths": "equal", "shared": False, "max_num_seqs": 2}
    return BatchRun(JobQueue(), lambda pair: lab, PoolInputs(**asked | inputs))


def test_a_batch_run_can_be_stopped() -> None:
    under_way = run(tokens=64)
    reported = ""
    for news in under_way.transcript(partial(lines, BatchReducer(3))):
        reported += news
        if '"tokens"' in news:
            under_way.cancelled.set()
    shown = picture()
    for record in records(reported):
        shown.apply(record)
    assert shown.finished
    states = [row["state"] for row in table(shown, "sequences")]
    finished, expected = map(int, shown.readouts["finished"][0].split(" / "))
    assert finished == states.count("finished") < expected
    assert "cancelled" in states
    assert shown.say.startswith(f"Ended early: {finished} of {expected} ")
    assert {row["state"] for row in table(shown, "pool")} <= {"free", "cached"}
