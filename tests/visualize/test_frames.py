"""Frames leave nothing out, repeat nothing, and do not depend on where the events are split."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.config import EngineConfig, SamplingParams
from lab.trace.events import (
    BlockAllocated,
    BlockEvicted,
    BlockFreed,
    Bonus,
    Committed,
    Event,
    FellBack,
    Preempted,
    Proposed,
    Recovered,
    RunStarted,
    StepTimed,
    Verified,
)
from lab.trace.metrics import measure
from tests import tiny_models
from tests.visualize.conftest import CONFIGS, script
from tests.visualize.picture import Picture, picture
from visualize.charts import rounds_chart as rounds
from visualize.reduce.frames import Reducer
from visualize.reduce.metric_cards import PreviousRun, rows
from visualize.reduce.settings_text import described
from visualize.states import sentences
from visualize.text import visible


def test_frames_are_json_and_numbered(events: list[Event]) -> None:
    frames = Reducer().feed(events)
    text = json.dumps(frames)
    assert json.dumps(json.loads(text)) == text
    assert [frame["seq"] for frame in frames] == list(range(len(frames)))
    assert len(frames) == sum(isinstance(event, StepTimed) for event in events) + 2  # plus the head and the end
    assert "head" in frames[0]
    assert frames[-1]["finished"]["reason"] == "length"
    assert [frames[seq]["step"] for seq in (0, 1, -2, -1)] == [-1, 0, len(frames) - 3, -1]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_frames_do_not_depend_on_how_events_are_split(data: st.DataObject) -> None:
    events = script(CONFIGS["all"], max_tokens=12)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(events)), max_size=8)))
    reducer, frames = Reducer(), []
    for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        frames += reducer.feed(events[start:end])
    assert frames == Reducer().feed(events)


def test_all_frames_together_give_the_whole_run(events: list[Event]) -> None:
    shown = picture(Reducer().feed(events))
    commits = [event for event in events if isinstance(event, Committed)]
    assert [token["text"] for token in shown.tokens] == [
        visible(piece) for commit in commits for piece in commit.pieces
    ]
    assert [token["origin"] for token in shown.tokens] == [origin for commit in commits for origin in commit.origins]
    columns = dict(zip(rounds.TRACES, shown.columns["rounds"], strict=True))
    verdicts = [event for event in events if isinstance(event, Verified)]
    proposals = [event for event in events if isinstance(event, Proposed)]
    assert len(columns["accepted"]["x"]) == sum(verdict.accepted for verdict in verdicts)
    assert len(columns["rejected"]["x"]) == sum(not verdict.accepted for verdict in verdicts)
    assert len(columns["unjudged"]["x"]) == len(proposals) - len(verdicts)
    passes = [event for event in events if isinstance(event, StepTimed)]
    for trace, name in enumerate(("draft_ms", "verify_ms")):
        assert shown.columns["timing"][trace]["y"] == pytest.approx([getattr(step, name) for step in passes], abs=1e-3)


def test_a_rounds_phases_are_its_events_and_its_slots_those_of_the_cache(events: list[Event]) -> None:
    config, kept, table = events[0].config, 0, []
    for frame in Reducer().feed(events):
        table = frame.get("table", table)
        if "round" not in frame:
            continue
        phases = frame["round"]
        own = [event for event in events if getattr(event, "step", None) == frame["step"]]
        proposed, verified = ([event for event in own if isinstance(event, kind)] for kind in (Proposed, Verified))
        timed = next(event for event in own if isinstance(event, StepTimed))
        assert [draft["text"] for draft in phases["drafts"]] == [visible(event.text) for event in proposed]
        assert [verdict["accepted"] for verdict in phases["verdicts"]] == [event.accepted for event in verified]
        added = next((event for event in own if isinstance(event, Recovered | Bonus)), None)
        assert (phases["own"] or {}).get("kind") == (added.kind if added else None if proposed else "plain")
        if config["kv_cache"]:
            assert phases["kept"] == timed.kv_tokens
            if proposed:
                assert phases["written"] == kept + 1 + len(proposed), "the token before the drafts is written with them"
                assert phases["kept"] <= kept + 1 + sum(event.accepted for event in verified)
            assert len(table) * config["block_size"] >= phases["kept"] or not config["paged"]
        kept = phases["kept"]


def test_a_block_of_draft_tokens_comes_from_one_parallel_pass() -> None:
    started, *others = script(CONFIGS["speculative"])
    for drafter, parallel in (("draft", False), ("dflash", True)):
        own = replace(started, config=started.config | {"speculative": drafter})
        frames = [frame for frame in Reducer().feed([own, *others]) if frame.get("round", {}).get("drafts")]
        assert frames
        assert all(frame["round"].get("parallel", False) == parallel for frame in frames)
        assert all(("in one parallel pass" in frame["say"]) == parallel for frame in frames)


@pytest.mark.parametrize("kind", ["no cache", "plain", "speculative"])
def test_without_a_cache_all_but_the_last_token_is_recomputed(kind: str) -> None:
    config = replace(CONFIGS[kind], kv_cache=False) if kind == "speculative" else CONFIGS[kind]
    reducer, shown, known, before, again, new = Reducer(), Picture(), 0, 0, [], []
    for event in script(config):
        match event:
            case RunStarted():
                known = len(event.prompt_token_ids)
            case Committed():
                known += len(event.token_ids)
            case StepTimed():
                again.append(max(0, before - 1))
                new.append(event.target_tokens - again[-1])
                before = known
        for frame in reducer.feed([event]):
            shown.apply(frame)
    whole, fresh = shown.columns["recomputed"]
    if config.kv_cache:
        assert whole["y"] == fresh["y"] == []
        assert "recomputed" not in shown.captions
        return
    assert fresh["y"] == new
    assert whole["y"] == [a + b for a, b in zip(again, new, strict=True)]
    assert shown.captions["recomputed"] == f"{sum(again):,} of {sum(again) + sum(new):,} tokens"
    assert shown.layout["recomputed"]["xaxis.range"][1] >= len(new) - 1
    begun = picture(Reducer().feed(script(config, max_tokens=1))).layout["recomputed"]["xaxis.range"]
    assert begun[1] >= 5, "on a shorter axis, passes would be labelled 0, 0, 1, 1"
    assert shown.layout["recomputed"]["yaxis.range"][1] >= max(whole["y"])


def test_the_block_map_agrees_with_the_events_at_every_step(events: list[Event]) -> None:
    shown, reducer, live, draft_tokens = Picture(), Reducer(), {}, [0, 0]
    size = events[0].config["block_size"]
    for event in events:
        draft_tokens[0] += isinstance(event, Proposed)
        draft_tokens[1] += isinstance(event, Verified) and event.accepted
        if isinstance(event, BlockAllocated):
            live[event.block] = event.index
        elif isinstance(event, BlockFreed):
            del live[event.block]
        for frame in reducer.feed([event]):
            shown.apply(frame)
            rows = shown.columns["pool"][0] or dict.fromkeys(("state", "index", "fill", "vain"), ())  # no cache
            assert {block for block, state in enumerate(rows["state"]) if state == "live"} == live.keys()
            assert {block: rows["index"][block] for block in live} == live
            if isinstance(event, StepTimed):
                assert shown.columns["blocks"][0]["y"][-1] == len(live)
                filled = {index for block, index in live.items() if rows["fill"][block]}
                assert filled == set(range(-(-event.kv_tokens // size)))
                proposed, kept = draft_tokens
                if proposed == kept:
                    assert not any(rows["vain"])
                elif event.kv_tokens % size and event.step_kind == "verify":
                    assert any(rows["vain"]), "in the partly filled block"
                draft_tokens = [0, 0]
    assert not live


def test_rejected_draft_tokens_are_attached_to_the_token_that_replaced_them() -> None:
    events = script(CONFIGS["speculative"])
    thrown_away = sum(isinstance(event, Proposed) for event in events) - sum(
        isinstance(event, Verified) and event.accepted for event in events
    )
    tokens = picture(Reducer().feed(events)).tokens
    assert sum(len(token.get("rejected", [])) for token in tokens) == thrown_away > 0
    for token in tokens:
        assert ("rejected" in token) == (token["origin"] == "recovered")
        assert {"p", "q", "u"} <= token.keys() or token["origin"] != "accepted"
        for first in token.get("rejected", [])[:1]:
            assert {"p", "q", "u"} <= first.keys()  # verified, and rejected


def test_a_frame_says_only_what_changed(events: list[Event]) -> None:
    shown = Picture()
    for frame in Reducer().feed(events):
        for name in ("captions", "readouts"):
            assert not frame.get(name, {}).items() & getattr(shown, name).items()
        for chart, paths in frame.get("layout", {}).items():
            assert not [path for path, value in paths.items() if shown.layout[chart].get(path) == value]
        shown.apply(frame)


def test_a_run_that_has_not_begun_leaves_the_one_before_to_compare_with() -> None:
    events = script(CONFIGS["plain"])
    before = PreviousRun(events[0], measure(events))
    reducer = Reducer(before)
    assert reducer.after() is before
    reducer.feed(events[:1])
    assert reducer.after() == PreviousRun(events[0], measure(events[:1]))


def test_a_run_from_a_file_says_where_it_was_made_and_what_was_set() -> None:
    events = script(CONFIGS["speculative"], temperature=0.0)
    before = PreviousRun(events[0], measure(events))
    for hardware, named in (("a fast\u202e GPU", "a fast⟨RLO⟩ GPU"), ("", "cpu")):
        events[0] = replace(events[0], hardware=hardware, prompt_pieces=("Once", "\u202e"))
        (frame,) = Reducer(before, recorded=True).feed(events[:1])
        assert frame["notice"] == f"recorded on {named}"
        assert "compared" not in frame, "that was another machine, perhaps"
        assert frame["head"]["described"] == described(events[0].config, events[0].sampling)
        assert frame["head"]["recorded"]
        assert frame["head"]["prompt"] == ["Once", "⟨RLO⟩"]
        assert frame["head"]["sentences"] == sentences("draft", greedy=True)


def test_special_tokens_of_a_prompt_are_marked_and_notes_stay_beside_the_numbers() -> None:
    started, *_ = script(CONFIGS["plain"])
    started = replace(started, prompt_pieces=("a", "<s>"), special_positions=(1, 7, -1), notes=("Read\u202e so.",))
    (frame,) = Reducer().feed([started])
    plain, special = frame["head"]["prompt"]
    assert (plain, special["text"], special["special"], special["origin"]) == ("a", "<s>", True, "prompt")
    assert frame["notice"] == "Read⟨RLO⟩ so."


@pytest.mark.parametrize("drafter", ["off", "draft", "ngram", "early_exit", "synthetic"])
def test_there_is_a_row_for_every_draft_token(drafter: str) -> None:
    shown = picture(Reducer().feed(script(EngineConfig(speculative=drafter, num_speculative_tokens=6), max_tokens=1)))
    assert shown.layout["rounds"]["yaxis.range"] == [-0.6, 0.6 if drafter == "off" else 6.6]


def test_text_held_back_to_the_end_is_shown() -> None:
    events = script(CONFIGS["plain"], max_tokens=2)
    shown = picture(Reducer().feed(events))
    assert len(shown.tokens) == 2
    events[-1] = replace(events[-1], text="half\u202e")
    assert [token["text"] for token in picture(Reducer().feed(events)).tokens[2:]] == ["half⟨RLO⟩"]


@pytest.mark.parametrize("paged", [False, True])
def test_blocks_are_counted_and_those_given_back_stay_visible(paged: bool) -> None:
    frames = Reducer().feed(script(EngineConfig(paged=paged, num_blocks=64), max_tokens=40))
    one, three = "1 in use, 25% full · 0 cached · 63 free", "3 in use, 8% full · 0 cached · 61 free"
    assert frames[1]["captions"]["blocks"] == (one if paged else three)
    assert frames[-1]["captions"]["blocks"] == "3 blocks used, all freed (pale)"
    rows = picture(frames).columns["pool"][0]
    assert set(rows["state"]) == {"free"}
    assert sum(fill > 0 for fill in rows["fill"]) == 3


def test_readouts_match_the_events_so_far(events: list[Event]) -> None:
    shown, reducer = Picture(), Reducer()
    for at, event in enumerate(events, 1):
        for frame in reducer.feed([event]):
            shown.apply(frame)
            assert shown.readouts == rows(measure(events[:at]), events[0].config)


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_end_agrees_with_the_readouts(adaptive: bool) -> None:
    """Each can be worked out from the other, even when some passes had no draft tokens."""
    config = EngineConfig(speculative="draft", adaptive_window=adaptive)
    run = tiny_models.engine("llama", "good").generate(
        "The king", config, SamplingParams(max_tokens=60, seed=4, ignore_eos=True)
    )
    shown = picture(Reducer().feed(run.events))
    value = {name: float(row[0]) for name, row in shown.readouts.items() if name in ("speed", "pass", "first")}
    found = re.search(r"at ([\d.]+) tok/s \(TTFT ([\d.]+) ms\)", shown.say)
    assert (float(found[1]), float(found[2])) == (value["speed"], value["first"])
    passes, kept, draft_tokens = map(
        int, re.search(r"(\d+) target passes instead of 59: (\d+) of (\d+)", shown.say).groups()
    )
    assert passes + kept == 59
    assert f"{59 / passes:.2f}" == shown.readouts["pass"][0]
    assert f"{kept / draft_tokens:.0%}" == "".join(shown.readouts["accepted"][:2])
    rounds = len({event.step for event in run.events if isinstance(event, Proposed)})
    assert passes == sum(isinstance(event, StepTimed) for event in run.events) - 1
    assert (f"({rounds} of the passes" in shown.say) == (rounds < passes)  # up to the window, which depends on timing


def test_a_prefill_in_parts_adds_its_token_once() -> None:
    events = script(CONFIGS["paged"], max_tokens=5)
    at = next(i for i, event in enumerate(events) if isinstance(event, StepTimed))
    part = replace(events[at], target_tokens=2, kv_tokens=2)
    whole = picture(Reducer().feed(events))
    frames = Reducer().feed([*events[:2], part, *events[2:]])
    assert "tokens" not in frames[1]
    assert "rounds" not in frames[1]["charts"]
    assert frames[1]["say"] == "Prefill: the target read 2 tokens more, 2 of the prompt's 4 tokens are known."
    parts = picture(frames)
    assert parts.tokens == whole.tokens
    assert parts.columns["rounds"] == whole.columns["rounds"]


def test_the_first_step_is_the_prefill_with_its_time_and_its_token() -> None:
    events = script(CONFIGS["speculative"])
    began, prefill, first = Reducer().feed(events)[:3]
    timed = next(event for event in events if isinstance(event, StepTimed))
    assert prefill["say"].startswith("Prefill: ")
    assert prefill["owner"] == 0
    shown = picture([began, prefill])
    assert [trace["x"] for trace in shown.columns["timing"]] == [[0], [0], [0], [], [0]]
    assert shown.columns["timing"][1]["y"] == [round(timed.verify_ms, 3)]
    assert shown.columns["rounds"][0]["x"] == [0]
    for chart in ("rounds", "timing"):
        low, high = shown.layout[chart]["xaxis.range"]
        assert low < 0 < 1 < high
    assert shown.apply(first).columns["timing"][3]["x"] == [1]  # speed leaves out the prefill, as in the readout


def test_rare_events_linger() -> None:
    events = script(CONFIGS["speculative"], max_tokens=12)
    at = next(i for i, event in enumerate(events) if isinstance(event, StepTimed) and event.step == 1)
    evicted = BlockEvicted(t_ms=0, block=90)
    failed = FellBack(t_ms=0, part="drafter", reason="Its output is not finite.")
    for rare, lingers in ((evicted, False), (failed, True)):
        frames = Reducer().feed([*events[:at], rare, *events[at:]])
        assert [frame.get("linger", False) for frame in frames if frame["step"] == 1] == [lingers]
    preempted, _ = Reducer().feed([*events[:at], Preempted(t_ms=0, tokens=9), *events[at:]])[2:4]
    assert preempted["say"].startswith("Preempted")
    assert preempted["linger"]
