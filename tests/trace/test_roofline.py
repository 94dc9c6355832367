"""The roofline's arithmetic, by hand."""

from __future__ import annotations

import pytest

from lab.trace.events import StepTimed
from lab.trace.roofline import Achieved, Limits, PassCost, achieved

LIMITS = Limits(bytes_per_second=1e9, flops_per_second=1e10)
"""A megabyte and ten million FLOPs per millisecond: the two limits meet at ten FLOPs per byte."""


def timed(draft_ms: float, verify_ms: float, draft: PassCost, verify: PassCost) -> StepTimed:
    return StepTimed(
        t_ms=0, step=1, step_kind="verify", target_tokens=1, batch_sequences=1, batch_tokens=1, draft_ms=draft_ms,
        verify_ms=verify_ms, sample_ms=7, rest_ms=7, total_ms=draft_ms + verify_ms + 14, draft_bytes=draft.bytes,
        draft_flops=draft.flops, verify_bytes=verify.bytes, verify_flops=verify.flops, kv_tokens=1,
        kv_reserved_bytes=0, kv_used_bytes=0, memory_bytes=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("work", "ms", "bound"),
    [
        (PassCost(2_000_000, 1_000_000), 2.0, "memory"),
        (PassCost(1_000_000, 10_000_000), 1.0, "memory"),
        (PassCost(1_000_000, 30_000_000), 3.0, "compute"),
        (PassCost(), 0.0, "memory"),
    ],
)
def test_the_longer_of_memory_and_compute_time_is_the_limit(work, ms, bound):
    assert LIMITS.least_ms(work) == pytest.approx(ms)
    assert LIMITS.bound(work) == bound


@pytest.mark.parametrize(
    ("draft_ms", "verify_ms", "draft", "verify", "share"),
    [
        # 2 ms of bytes, then 3 ms of FLOPs, in 4 + 6 ms: they cannot overlap, as the target waits for the draft.
        (4.0, 6.0, PassCost(2_000_000, 0), PassCost(1_000_000, 30_000_000), 0.5),
        (4.0, 2.0, PassCost(), PassCost(1_000_000, 1), 0.5),  # a lookup moves and computes nothing that is counted
        (0.0, 0.5, PassCost(), PassCost(1_000_000, 1), 2.0),  # a share above the limit is not clipped
    ],
)
def test_the_share_of_the_limit(draft_ms, verify_ms, draft, verify, share):
    step = timed(draft_ms, verify_ms, draft, verify)
    assert achieved(step, LIMITS) == Achieved(pytest.approx(share), "memory")
    assert achieved(timed(0.0, 0.0, draft, verify), LIMITS) is None
