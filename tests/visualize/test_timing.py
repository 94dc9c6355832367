"""The chart of times: bars and speed of each pass, the prefill beside them, and how near the limit they came."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.trace.events import Committed, Event, RunStarted, StepTimed
from lab.trace.roofline import achieved
from tests.visualize.conftest import CONFIGS, script
from tests.visualize.picture import Picture, picture
from tests.visualize.scripted import LIMITS
from visualize.reduce.frames import Reducer
from visualize.reduce.narration import limit


def test_the_speed_is_that_of_up_to_eight_passes(events: list[Event]) -> None:
    """Tokens of the latest passes by their time; the prefill is not one of them."""
    tokens, passes, speeds = 0, [], []
    for event in events:
        if isinstance(event, Committed):
            tokens = len(event.token_ids)
        elif isinstance(event, StepTimed) and event.step_kind != "prefill":
            passes.append((tokens, event.total_ms))
            made, ms = map(sum, zip(*passes[-8:], strict=True))
            speeds.append(1000 * made / ms)
    assert len(speeds) > 8
    assert picture(Reducer().feed(events)).columns["timing"][3]["y"] == pytest.approx(speeds, abs=0.06)


@pytest.mark.parametrize(("times", "cut"), [(2.5, False), (40, True)])
def test_a_prefill_that_would_dwarf_the_passes_is_labelled_as_cut_off(times: float, cut: bool) -> None:
    events, ms = [], 0.0
    for event in script(CONFIGS["plain"]):
        if isinstance(event, StepTimed):
            ms = 5.0 * (times if event.step == 0 else 1)
            event = replace(event, draft_ms=0.0, verify_ms=ms, sample_ms=0.0, rest_ms=0.0, total_ms=ms)
        events.append(event)
    frames = Reducer().feed(events)
    alone, shown, over = picture(frames[:2]), picture(frames[:12]), picture(frames)
    assert alone.layout["timing"]["yaxis.range"][1] >= 5 * times  # on its own, it is drawn whole
    assert alone.columns["timing"][4]["text"] == [f"prefill {5 * times:.1f} ms"]
    top = shown.layout["timing"]["yaxis.range"][1]
    assert (top < 5 * times) == cut
    assert shown.columns["timing"][4]["text"] == [f"prefill {5 * times:.1f} ms{', cut off' * cut}"]
    assert over.layout["timing"]["xaxis.range"][0] > 0
    assert over.columns["timing"][4]["text"] == [""], "a bar out of view has no label"
    assert 0 not in over.layout["timing"]["yaxis2.tickvals"], "its label would touch the number of a pass"


def test_a_run_without_a_prefill_is_drawn() -> None:
    """As a file may hold it."""
    events = [
        replace(event, step_kind="decode") if isinstance(event, StepTimed) and event.step == 0 else event
        for event in script(CONFIGS["plain"], max_tokens=3)
    ]
    *bars, speed, prefill = picture(Reducer().feed(events)).columns["timing"]
    assert [trace["x"] for trace in (*bars, speed)] == [[0, 1, 2]] * 4
    assert prefill["x"] == []


def test_every_pass_says_how_close_to_the_limit_it_came(events: list[Event]) -> None:
    reported = {event.step: limit(achieved(event, LIMITS)) for event in events if isinstance(event, StepTimed)}
    shown = Picture()
    for frame in Reducer().feed(events):
        shown.apply(frame)
        if frame["seq"] >= 1 and frame["step"] in reported:  # frame 0 is the head
            assert shown.captions["timing"].endswith(f": {reported[frame['step']].split(' (')[0]}")
    for trace in shown.columns["timing"][:2]:
        assert trace["customdata"] == [reported[step] for step in trace["x"]]


def test_unknown_limits_are_not_mentioned() -> None:
    events = script(CONFIGS["plain"], max_tokens=5)
    started = replace(events[0], read_bytes_per_second=None, flops_per_second=None)
    assert isinstance(started, RunStarted)
    shown = picture(Reducer().feed([started, *events[1:]]))
    assert shown.captions["timing"] == ""
    assert set(shown.columns["timing"][1]["customdata"]) == {""}


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(0.2, 400), min_size=40, max_size=40))
def test_no_bar_or_speed_runs_off_its_axis(times: list[float]) -> None:
    """However much passes differ, every bar in view fits in the chart of times."""
    waits, events = iter(times), []
    for event in script(CONFIGS["plain"], max_tokens=40):
        if isinstance(event, StepTimed):
            event = replace(event, verify_ms=(ms := next(waits)), total_ms=event.total_ms - event.verify_ms + ms)
        events.append(event)
    shown = Picture()
    for frame in Reducer().feed(events):
        shown.apply(frame)
        layout = shown.layout["timing"]
        if not layout:
            continue
        draft, verify, other, speed, prefill = shown.columns["timing"]
        cut = {0} if "cut off" in prefill["text"][0] else set()
        seen = [i for i, x in enumerate(verify["x"]) if layout["xaxis.range"][0] < x < layout["xaxis.range"][1]]
        bars = [draft["y"][i] + verify["y"][i] + other["y"][i] for i in seen if verify["x"][i] not in cut]
        assert max(bars, default=0) <= layout["yaxis.range"][1] + 0.01
        assert (
            max(
                (y for x, y in zip(speed["x"], speed["y"], strict=True) if x in map(verify["x"].__getitem__, seen)),
                default=0,
            )
            <= layout["yaxis2.range"][1] + 0.1
        )
