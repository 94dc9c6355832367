"""Noise is measured against a known truth, and waiting counted from events on one clock."""

from __future__ import annotations

import functools
import statistics
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.config import EngineConfig
from lab.measure.throughput import arrivals
from lab.measure.workload import user_requests
from lab.trace.events import Admitted, RunStarted, StepTimed
from lessons.course import course
from lessons.experiments.base import whole
from lessons.experiments.batches import Batches
from lessons.experiments.noise import Noise, disturbance, resampled
from lessons.experiments.traffic import Traffic, Waits
from tests import tiny_models
from visualize.charts.lesson_charts import narrowing_columns

ENGINE = functools.cache(lambda: tiny_models.engine("llama"))


def found(experiment: Any) -> dict[str, Any]:
    return whole(experiment.work(lambda pair: ENGINE(), threading.Event(), lambda *_: None)).figures


@given(st.lists(st.floats(0.5, 2), min_size=6, max_size=20))
def test_a_resampled_interval_holds_the_median_and_lies_within_the_values(values: list[float]) -> None:
    low, high = resampled(values)
    assert min(values) <= low <= statistics.median(values) <= high <= max(values)


def test_a_disturbance_ends_with_what_it_disturbs() -> None:
    before = threading.active_count()
    with disturbance(True):
        assert threading.active_count() > before
    assert threading.active_count() == before


@pytest.mark.slow
def test_a_longer_run_is_told_from_the_same_setting() -> None:
    """Half as many tokens more: that is seen through any noise that a test machine has."""
    figures = found(Noise(tokens=21, more=40, repeats=6))
    assert figures["truth"]["ratio"] == 3
    longer = [a / b for a, b in zip(figures["longer"]["ms"], figures["one"]["ms"], strict=True)]
    assert statistics.median(longer) > 1.5
    assert figures["spread"]["runs"] == 12
    assert figures["resampled"]["longer_low"] <= statistics.median(longer) <= figures["resampled"]["longer_high"]
    (same_band, longer_band, same, _), layout = narrowing_columns(figures)
    assert len(same["x"]) == 6
    assert len(same_band["x"]) == len(longer_band["y"]) == 2 * 4  # from three pairs on, up and back
    assert layout["yaxis.range"][1] > max(longer)


def test_requests_arrive_at_their_times() -> None:
    requests = user_requests(3, "equal", 4, temperature=0.0, seed=1)
    at = [0.0, 0.0, 0.3]
    steps = [*arrivals(ENGINE(), requests, EngineConfig(paged=True), at=at)]
    came = {one.owner: one.t_ms / 1000 for step in steps for one in step.entries if isinstance(one.event, RunStarted)}
    assert all(came[owner] >= time for owner, time in enumerate(at))
    waits = Waits(steps)
    assert all(ms > 0 for ms in waits.ttft.values())
    assert [len(gaps) for gaps in waits.gaps.values()] == [3, 3, 3]
    assert waits.seconds >= 0.3


def test_a_long_prompt_is_read_in_chunks_where_a_step_is_small() -> None:
    lesson = course()[21].front.preset.traffic
    assert {lesson.settings[name].step_tokens for name in ("whole", "chunked")} == {1024, 64}
    requests = user_requests(1, "equal", 2, temperature=0.0, seed=1, beginning="a " * 30)
    own = ENGINE().clone(max_num_batched_tokens=40)
    timed = [
        one.event
        for step in arrivals(own, requests, EngineConfig(paged=True))
        for one in step.entries
        if isinstance(one.event, StepTimed)
    ]
    assert max(one.batch_tokens for one in timed) <= 40


def test_traffic_that_is_stopped_while_its_limits_are_measured_finds_nothing() -> None:
    stopped = threading.Event()

    def watch(words: str, share: float) -> None:
        if "limits" in words:
            stopped.set()

    traffic = Traffic.model_validate({"settings": {"light": {"load": 0.5}}, "requests": 4})
    assert whole(traffic.work(lambda pair: ENGINE(), stopped, watch)).figures == {}


@pytest.mark.slow
def test_goodput_counts_what_keeps_to_both_limits() -> None:
    settings = {"light": {"load": 0.5}}
    lax = found(Traffic.model_validate({"settings": settings, "requests": 4, "ttft_limit": 1e6, "tpot_limit": 1e6}))
    assert lax["light"]["good_share"] == [1.0] * 3
    assert lax["light"]["goodput"] == lax["light"]["requests_per_second"]
    strict = {"ttft_limit": 1.0001, "tpot_limit": 1.0001, "output_tokens": 8}
    busy = found(Traffic.model_validate({"settings": {"busy": {"load": 4.0}}, "requests": 12, "repeats": 1} | strict))
    assert busy["busy"]["good_share"][0] < 1


def test_static_batching_waits_for_the_longest_of_a_group() -> None:
    shared = {"requests": 4, "at_once": 2, "output_tokens": 12, "paged": True}
    batches = Batches.model_validate(
        {"settings": {"static": shared | {"static": True}, "continuous": shared}, "repeats": 1}
    )
    joined: list[int] = []

    def watch(words: str, share: float, *events: Any) -> None:
        joined.extend(event.running for _, event in events if isinstance(event, Admitted))

    figures = whole(batches.work(lambda pair: ENGINE(), threading.Event(), watch)).figures
    assert figures["static"]["output_tokens"] == figures["continuous"]["output_tokens"]
    assert figures["static"]["most_sequences"] == [2]
    assert max(joined) == 2
