"""The serving bench measures what it reports, on tiny models."""

from __future__ import annotations

import json
import math
import statistics
import time
from dataclasses import asdict

import pytest
import torch

from lab import EngineConfig, LabError
from lab.bench import serving as bench
from lab.bench.serving import serve_stock
from lab.measure.interval import factor_interval
from lab.measure.measuring import finish
from lab.measure.throughput import in_flight, latencies, serve, summarise
from lab.measure.workload import LogNormalLengths, exactly
from lab.trace.events import StepTimed
from tests import tiny_models

PROMPTS = ["The king", "A fox went out", "Long ago, by the side of the sea, a fisherman"]


def test_lengths_have_a_long_tail_and_follow_the_seed():
    lengths = LogNormalLengths(median=48, sigma=0.8, shortest=1, longest=10_000)
    drawn = lengths.draw(4000, seed=0)
    assert drawn == lengths.draw(4000, seed=0) != lengths.draw(4000, seed=1)
    # The standard error of the logarithms' mean is 0.8 / sqrt(4000) = 0.013, that of their deviation 0.009.
    logarithms = [math.log(length) for length in drawn]
    assert statistics.mean(logarithms) == pytest.approx(math.log(48), abs=0.06)
    assert statistics.stdev(logarithms) == pytest.approx(0.8, abs=0.04)
    assert max(drawn) > 5 * statistics.median(drawn)
    assert set(LogNormalLengths(median=10, sigma=2.0, shortest=8, longest=12).draw(200, 0)) == {8, 9, 10, 11, 12}


def test_one_at_a_time_and_all_at_once_do_the_same_work(lab):
    jobs = exactly(PROMPTS, [5, 9, 17])
    alone = serve(lab, jobs, EngineConfig(), max_num_seqs=1)
    together = serve(lab, jobs, EngineConfig(), max_num_seqs=3)
    assert alone["most_sequences"] == alone["mean_sequences"] == 1
    assert together["most_sequences"] == 3
    # All prompts fit in the first step, so there are as many steps as the longest output has tokens.
    assert together["mean_sequences"] == pytest.approx((5 + 9 + 17) / 17)
    assert alone["preemptions"] == together["preemptions"] == 0


def test_time_to_first_token_counts_waiting():
    runs, _ = finish(tiny_models.engine("llama", max_num_seqs=1), exactly(PROMPTS, [8, 8, 8]), EngineConfig())
    waited = 0.0
    for run in runs:
        # All had arrived before the first step, so it waited while the ones before it ran.
        assert run.metrics.ttft_ms > waited
        waited += sum(event.total_ms for event in run.events if isinstance(event, StepTimed))


def test_the_clock_starts_when_all_requests_are_queued(lab, monkeypatch):
    queued, prepare = [], lab.prepare

    def slow(*request, **how):
        time.sleep(0.05)
        queued.append(prepare(*request, **how))
        return queued[-1]

    monkeypatch.setattr(lab, "prepare", slow)
    began = time.perf_counter()
    waited = []
    monkeypatch.setattr(
        type(lab), "device", "cuda:1"
    )  # another GPU, which torch would take to be meant, does not count
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *where: waited.append(where))
    runs, seconds = finish(lab, exactly(PROMPTS, [8, 8, 8]), EngineConfig())
    assert waited == [("cuda:1",)]
    assert len(queued) == 3
    assert seconds <= time.perf_counter() - began - 3 * 0.05
    computed = [event.total_ms for event in runs[0].events if isinstance(event, StepTimed)]  # all were in every step
    assert 1000 * seconds >= sum(computed)


def test_waste_is_reserved_and_unused_memory(lab):
    (run,), _ = finish(lab, exactly(["abcdefgh"], [24]), EngineConfig(block_size=16))
    found = in_flight([run])
    # Two blocks of 16 slots are reserved for 32 tokens; after step k, 8 + k of them hold keys and values.
    steps = sum(isinstance(event, StepTimed) for event in run.events)
    assert steps == 24
    assert found["wasted_slots"] == pytest.approx(statistics.mean(32 - (8 + k) for k in range(steps)))
    assert found["wasted_share"] == pytest.approx(found["wasted_slots"] / 32)
    (paged,), _ = finish(lab, exactly(["abcdefgh"], [24]), EngineConfig(block_size=16, paged=True))
    assert in_flight([paged])["wasted_slots"] < found["wasted_slots"]


def test_transformers_decodes_the_same_tokens_to_each_length(lab):
    """Otherwise the rows would compare different work."""
    jobs = exactly(PROMPTS, [5, 9, 17])
    runs, _ = finish(lab, jobs, EngineConfig())
    outputs, figures = serve_stock(lab, jobs, max_batch_tokens=512)
    assert outputs == [run.token_ids for run in runs]
    seconds = 31 / figures["tokens_per_second"]
    assert 0 < figures["ttft_p50_ms"] <= figures["ttft_p99_ms"] <= 1000 * seconds
    assert 0 < figures["itl_p50_ms"] <= figures["itl_p99_ms"] <= 1000 * seconds


def test_requests_that_failed_or_gave_up_part_of_their_setting_are_not_measured(monkeypatch):
    lab = tiny_models.engine("llama", "good")
    assert len(finish(lab, exactly(PROMPTS[:1], [1]), EngineConfig())[0][0].token_ids) == 1
    monkeypatch.setattr(lab.draft, "forward", None)
    with pytest.raises(LabError, match="went on without its drafter"):
        finish(lab, exactly(PROMPTS, [4, 5, 6]), EngineConfig(speculative="draft"))
    monkeypatch.setattr(lab.target, "forward", None)
    with pytest.raises(LabError, match="failed"):
        finish(lab, exactly(PROMPTS[:1], [4]), EngineConfig())


def test_percentiles_and_medians_are_computed_as_defined():
    figures = latencies(tokens=50, seconds=2.0, ttft=[1.0, 2.0, 3.0], itl=[5.0] * 99 + [105.0])
    assert figures["tokens_per_second"] == 25
    assert figures["ttft_p50_ms"] == 2
    assert figures["itl_p50_ms"] == 5
    assert 5 < figures["itl_p99_ms"] <= 105
    some = summarise([{"tokens_per_second": rate, "preemptions": 2} for rate in (10.0, 50.0, 20.0)])
    assert some == {"tokens_per_second": 20, "preemptions": 2, "lower": 15, "upper": 35}


def test_the_batch_size_where_speculation_stops_paying_is_found(monkeypatch):
    monkeypatch.setattr(bench, "SIZES", (1, 2, 4, 8))

    def found(*ratios: tuple[float, ...]) -> dict[str, object]:
        """``ratios``: of each size, one per repeat. A whole repeat may be slow."""
        slowed, samples = (1.0, 0.5, 0.9), {}
        for size, some in zip(bench.SIZES, ratios, strict=True):
            for way, factors in (("off", (1.0,) * len(some)), ("draft", some)):
                samples[bench.growth_name(size, 0.0, way)] = [
                    {"tokens_per_second": 100 * slow * factor} for slow, factor in zip(slowed, factors, strict=False)
                ]
        return bench.speculation(samples, 0.0)

    pays, loses, unsure = (1.5, 1.4, 1.6), (0.8, 0.81, 0.82), (0.8, 0.9, 0.7)  # the last by chance in one case of four
    assert found(pays, pays, loses, loses)["stops_paying_at"] == 4
    assert found(pays, loses, pays, loses)["stops_paying_at"] == 8  # a single loss does not count
    assert found(pays, pays, pays, pays)["stops_paying_at"] is None
    assert found(loses, loses, loses, loses)["stops_paying_at"] == 1
    some = found(pays, unsure, loses, unsure)
    assert list(some["told_by_size"].values()) == ["pays", "too close to call", "loses", "too close to call"]
    assert some["stops_paying_at"] is None  # unclear at 8
    assert some["sure_by_size"][2] == asdict(factor_interval(unsure))
    assert set(found(*((0.5,),) * 4)["told_by_size"].values()) == {"too close to call"}  # one repeat says nothing


@pytest.mark.slow
def test_the_whole_bench_runs_and_reports_every_row(lab, monkeypatch):
    monkeypatch.setattr(bench, "SIZES", (1, 4))
    monkeypatch.setattr(bench, "TEMPERATURES", (0.0,))
    monkeypatch.setattr(bench, "GROWTH_TOKENS", 4)
    monkeypatch.setattr(bench, "GROWTH_REQUESTS", 8)
    monkeypatch.setattr(bench, "SHARED_TOKENS", 32)
    monkeypatch.setattr(bench, "PARAGRAPH_TOKENS", 40)
    short = LogNormalLengths(median=8, sigma=0.5, shortest=4, longest=20)
    monkeypatch.setattr(bench, "LogNormalLengths", lambda: short)
    lines: list[str] = []
    result = json.loads(json.dumps(bench.run_serve(lab, 4, 0, 1, lines.append)))
    assert lines
    shared = result["throughput"]
    assert shared["batched paged"]["most_sequences"] == 4
    assert result["memory_setting"]["num_blocks"] < result["memory_setting"]["blocks_all_fill"]
    growth = result["growth"]
    assert result["growth_setting"] == {
        "requests": bench.GROWTH_REQUESTS,
        "output_tokens": bench.GROWTH_TOKENS,
        "num_speculative_tokens": bench.GAMMA,
    }
    assert result["shared_prefix_tokens"] == 32
    assert [row["most_sequences"] for row in growth.values()] == [1, 1, 4, 4]
    four = growth[bench.growth_name(4, 0.0, "off")]
    assert four["mean_sequences"] > 3, "the next request begins where one has ended"
    memory = result["memory"]
    assert memory["contiguous, the most"]["most_sequences"] < memory["paged"]["most_sequences"]
    assert memory["contiguous, the most"]["wasted_share"] > memory["paged"]["wasted_share"]
    assert memory["contiguous, the most"]["preemptions"] == 0
    ratio = result["ratios"]["batched paged / one after another"]
    rates = {name: row["tokens_per_second"] for name, row in shared.items()}
    assert ratio == pytest.approx(rates["batched paged"] / rates["one after another"])


def test_gamma_by_batch_size_is_compared_with_every_other_setting_under_every_load(lab, monkeypatch):
    monkeypatch.setattr(bench, "GAMMA_LOADS", {1: 2, 3: 4})
    monkeypatch.setattr(bench, "GROWTH_TOKENS", 6)
    monkeypatch.setattr(bench, "SHRINKING_TOKENS", 4)
    found = bench.run_gammas(lab, 1, lambda line: None)
    ends = "3 that end one by one"
    assert found["requests"] == {"1 at once": 2, "3 at once": 4, ends: 3}
    assert found["output_tokens"][ends] == [4, 12]
    for load, gains in found["table_over"].items():
        speeds = {name: one["median"] for name, one in found["tokens_per_second"][load].items()}
        table = speeds.pop(bench.BY_BATCH)
        assert {name: one["median"] for name, one in gains.items()} == pytest.approx(
            {name: table / speed for name, speed in speeds.items()}
        )
