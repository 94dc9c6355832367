"""The roofline: the least time that a device needs for a step, and how near the step came to it.

Work that moves B bytes and does F floating-point operations takes at least max(B / bandwidth, F / rate): the roofline
of Williams, Waterman and Patterson ("Roofline: An Insightful Visual Performance Model for Multicore Architectures",
CACM 2009), where it is drawn as a rate, min(peak rate, bandwidth x operational intensity).

A share above 1 is neither an error nor clipped. It says that the pass differed from what the limit was measured on:
bytes came from a cache or were only read, or FLOPs came from a faster kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lab.trace.events import RunStarted, StepTimed

Bound = Literal["memory", "compute"]


@dataclass(frozen=True, slots=True)
class PassCost:
    """Bytes to move between memory and processor, and floating-point operations to do."""

    bytes: int = 0
    flops: int = 0

    def __add__(self, other: PassCost) -> PassCost:
        return PassCost(self.bytes + other.bytes, self.flops + other.flops)


@dataclass(frozen=True, slots=True)
class Limits:
    """A device's peak rates: bytes read and written per second, and FLOPs per second. Raises ValueError unless both
    are above 0. Times are in milliseconds."""

    bytes_per_second: float
    flops_per_second: float

    def __post_init__(self) -> None:
        if not (self.bytes_per_second > 0 and self.flops_per_second > 0):
            raise ValueError("a device's limits are above 0")

    def memory_ms(self, work: PassCost) -> float:
        return 1000 * work.bytes / self.bytes_per_second

    def compute_ms(self, work: PassCost) -> float:
        return 1000 * work.flops / self.flops_per_second

    def least_ms(self, work: PassCost) -> float:
        """The least time, in milliseconds, in which ``work`` can be done, by the roofline."""
        return max(self.memory_ms(work), self.compute_ms(work))

    def bound(self, work: PassCost) -> Bound:
        return "memory" if self.memory_ms(work) >= self.compute_ms(work) else "compute"


@dataclass(frozen=True, slots=True)
class Achieved:
    """A step's ``share`` of the limit, least time / time taken, and what takes longer at best: moving bytes or
    computing.
    """

    share: float
    bound: Bound


def limits_of(started: RunStarted) -> Limits | None:
    if started.copy_bytes_per_second is None or started.matmul_flops_per_second is None:
        return None
    return Limits(started.copy_bytes_per_second, started.matmul_flops_per_second)


def achieved(timed: StepTimed, limits: Limits) -> Achieved | None:
    """Compares a step's passes, the draft's and the target's one after the other, with the least time for each.

    The time is ``draft_ms`` + ``verify_ms``, which includes drawing the proposals, and packing and launching the passes
    on the host: a GPU's share is lower by what it waits for the host. Where no model drafts, it is ``verify_ms`` alone:
    a lookup is not a pass. None: no time was measured.
    """
    drafting = PassCost(timed.draft_bytes, timed.draft_flops)
    verifying = PassCost(timed.verify_bytes, timed.verify_flops)
    took = timed.verify_ms + (timed.draft_ms if drafting != PassCost() else 0.0)
    if took <= 0:
        return None
    least = limits.least_ms(drafting) + limits.least_ms(verifying)
    return Achieved(least / took, limits.bound(drafting + verifying))
