"""The roofline's arithmetic, by hand."""

from __future__ import annotations

import pytest

from lab.trace.events import StepTimed
from lab.trace.roofline import Limits, PassCost, achieved

LIMITS = Limits(bytes_per_second=1e9, flops_per_second=1e10)
"""A megabyte and ten million FLOPs per millisecond: the two limits meet at ten FLOPs per byte."""


def timed(verify_ms: float, verify: PassCost) -> StepTimed:
    return StepTimed(
        t_ms=0, step=1, step_kind="verify", target_tokens=1, batch_sequences=1, batch_tokens=1, draft_ms=4,
        verify_ms=verify_ms, sample_ms=7, rest_ms=7, total_ms=verify_ms + 18, draft_bytes=7,
        draft_flops=7, verify_bytes=verify.bytes, verify_flops=verify.flops, kv_tokens=1,
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
    assert LIMITS.nearer(work) == bound


@pytest.mark.parametrize(
    ("ms", "work", "share", "bound"),
    [
        (4.0, PassCost(2_000_000, 1), 0.5, "memory"),
        (4.0, PassCost(1, 30_000_000), 0.75, "compute"),
        (2.0, PassCost(2_000_000, 1), 1.0, "memory"),
        (20.0, PassCost(2_000_000, 1), 0.1, None),  # far from both: anything may be the reason
        (0.5, PassCost(2_000_000, 1), 4.0, None),  # never clipped: the limit was measured too low
    ],
)
def test_nothing_is_said_to_bind_a_pass_that_is_far_from_the_roofline_or_above_it(ms, work, share, bound):
    found = achieved(timed(ms, work), LIMITS)
    assert found.share == pytest.approx(share)
    assert found.bound == bound
    assert achieved(timed(0.0, work), LIMITS) is None
