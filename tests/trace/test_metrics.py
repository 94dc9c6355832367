"""Metrics of a run written by hand, so that every number can be checked on paper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lab.trace.events import Bonus, Committed, Proposed, Recovered, RunStarted, StepTimed, Verified
from lab.trace.metrics import measure


def commit(t_ms, step, *origins):
    n = len(origins)
    return Committed(
        t_ms=t_ms, step=step, token_ids=(1,) * n, origins=origins, pieces=("a",) * n, probabilities=(0.5,) * n,
        text="a" * n,
    )  # fmt: skip


def timed(t_ms, step, kind, reserved, used, **work):
    work = dict.fromkeys(("draft_bytes", "draft_flops", "verify_bytes", "verify_flops"), 0) | work
    return StepTimed(
        t_ms=t_ms, step=step, step_kind=kind, target_tokens=1, batch_sequences=1, batch_tokens=1, draft_ms=0,
        verify_ms=1, sample_ms=0, rest_ms=0,
        total_ms=1, kv_tokens=1, kv_reserved_bytes=reserved, kv_used_bytes=used, memory_bytes=1000 + step, **work,
    )  # fmt: skip


def proposal(step, position, accepted):
    yield Proposed(t_ms=0, step=step, position=position, token_id=1, text="a", q=0.5)
    if accepted is not None:
        yield Verified(t_ms=0, step=step, position=position, token_id=1, p=0.4, q=0.5, u=0.1, accepted=accepted)


EVENTS = [
    commit(10, 0, "plain"),
    timed(10, 0, "prefill", 100, 50),
    # round 1: both accepted, three tokens in 6 ms
    *proposal(1, 0, True),
    *proposal(1, 1, True),
    Bonus(t_ms=16, step=1, position=2, token_id=1, text="a", p=0.4),
    commit(16, 1, "accepted", "accepted", "bonus"),
    timed(16, 1, "verify", 200, 80),
    # round 2: the first rejected, the second never verified, one token in 4 ms
    *proposal(2, 0, False),
    *proposal(2, 1, None),
    Recovered(t_ms=20, step=2, position=0, token_id=1, text="a", p=0.4),
    commit(20, 2, "recovered"),
    timed(20, 2, "verify", 200, 90),
]


def test_metrics_equal_those_computed_by_hand():
    metrics = measure(EVENTS)
    assert metrics.generated_tokens == 5
    assert metrics.ttft_ms == 10
    assert metrics.tokens_per_second == pytest.approx(4 / 0.010)
    assert metrics.itl_p50_ms == pytest.approx(2.0)  # 2, 2, 2, 4
    assert metrics.itl_p99_ms == pytest.approx(2 + 2 * 0.97)
    assert metrics.mean_acceptance_length == 1 + 2 / 2
    assert metrics.draft_acceptance_rate == 2 / 4
    assert metrics.acceptance_by_position == (0.5, 0.5)
    assert metrics.target_passes_per_token == 2 / 4
    assert (metrics.kv_reserved_bytes, metrics.kv_used_bytes) == (200, 90)
    assert metrics.peak_memory_bytes == 1002
    assert metrics.elapsed_ms == 20


def test_a_run_that_has_just_begun_has_no_rates():
    for events in ([], EVENTS[:1], EVENTS[:2]):
        metrics = measure(events)
        assert metrics.tokens_per_second is None
        assert metrics.mean_acceptance_length is None
        assert metrics.acceptance_by_position == ()


def test_total_variation_is_the_mean_over_verified_positions():
    events = [
        replace(event, threshold=0.09, total_variation=0.1 * (1 + i)) if isinstance(event, Verified) else event
        for i, event in enumerate(EVENTS)
    ]
    moved = [event.total_variation for event in events if isinstance(event, Verified)]
    assert measure(events).mean_total_variation == pytest.approx(sum(moved) / 3)
    assert measure(EVENTS).mean_total_variation is None


def test_the_most_bytes_of_any_step_count():
    metrics = measure([timed(10, 5, "prefill", 200, 90), timed(20, 1, "decode", 100, 50)])
    assert (metrics.kv_reserved_bytes, metrics.kv_used_bytes, metrics.peak_memory_bytes) == (200, 90, 1005)


def test_the_share_of_the_limit_is_the_median_after_the_prefill():
    """1 GB/s and 10 GFLOP/s: a megabyte takes a millisecond at best, and so do ten million FLOPs."""
    started = RunStarted(
        t_ms=0, prompt="a", prompt_token_ids=(1,), prompt_pieces=("a",), config={}, sampling={}, target="t", draft=None,
        device="cpu", dtype="float32", num_blocks=0, block_bytes=0, read_bytes_per_second=1e9,
        flops_per_second=1e10, cuda_graphs=False, compiled=False,
    )  # fmt: skip
    events = [
        started,
        timed(1, 0, "prefill", 0, 0, verify_bytes=990_000, verify_flops=1),
        timed(2, 1, "verify", 0, 0, verify_bytes=100_000, verify_flops=2_000_000),  # 20%, compute
        timed(3, 2, "decode", 0, 0, verify_bytes=300_000, verify_flops=1),
        timed(4, 3, "decode", 0, 0, verify_bytes=400_000, verify_flops=1),
    ]
    assert measure(events).roofline_fraction == pytest.approx(0.3)
    assert measure(events).roofline_nearer == "memory"
    assert measure(events).roofline_bound is None  # too far from it to say
    assert measure([*events[:2], events[-1]]).roofline_bound == "memory"
    assert measure(events[:3]).roofline_nearer == "compute"
    for unknown in (events[:2], events[1:], [replace(started, read_bytes_per_second=None), *events[1:]]):
        assert measure(unknown).roofline_fraction is None
        assert measure(unknown).roofline_bound is None


def test_percentiles_equal_those_of_numpy():
    commits = [commit(t_ms, step, "plain") for step, t_ms in enumerate([0, 9, 10, 30, 31.5, 40, 77, 78])]
    gaps = np.diff([event.t_ms for event in commits])
    for count in range(2, len(commits) + 1):
        metrics = measure(commits[:count])
        wanted = [np.percentile(gaps[: count - 1], share) for share in (50, 99)]
        assert [metrics.itl_p50_ms, metrics.itl_p99_ms] == pytest.approx(wanted)


def test_the_prefill_after_a_preemption_counts_as_one_pass():
    """Its last chunk gives a token and counts as a pass; the chunks before it give none and do not count."""
    again = [timed(24, 3, "prefill", 200, 90), commit(26, 4, "plain"), timed(26, 4, "prefill", 200, 90)]
    metrics = measure([*EVENTS, *again])
    assert metrics.target_passes_per_token == 3 / 5
