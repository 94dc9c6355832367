"""The roofline: the least time that a device needs for a step, and how near the step came to it.

A device moves so many bytes and does so many floating-point operations per second. Work that moves B
bytes and does F operations takes at least max(B / bandwidth, F / rate): the roofline of Williams, Waterman and
Patterson ("Roofline: An Insightful Visual Performance Model for Multicore Architectures", CACM 2009), where
it is drawn as a rate, min(peak rate, bandwidth x operational intensity).

A share above 1 is neither an error nor clipped. It says that the pass differed from what the limit was measured on.
Bytes that come faster than in a large copy come from a cache (small weights stay in a CPU's last-level cache from one
pass to the next), or are only read, which some processors do faster than copying. FLOPs that come faster than in a
large product come from a different kernel (float16 on CPUs that have no such arithmetic).
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
    """A device's peak rates: bytes read and written per second, and FLOPs per second.

    Raises:
        ValueError: one of them is not above 0.
    """

    bytes_per_second: float
    flops_per_second: float

    def __post_init__(self) -> None:
        if not (self.bytes_per_second > 0 and self.flops_per_second > 0):
            raise ValueError("a device's limits are above 0")

    def memory_ms(self, work: PassCost) -> float:
        """The least time, in milliseconds, in which its bytes can be moved."""
        return 1000 * work.bytes / self.bytes_per_second

    def compute_ms(self, work: PassCost) -> float:
        """The least time, in milliseconds, in which its operations can be done."""
        return 1000 * work.flops / self.flops_per_second

    def least_ms(self, work: PassCost) -> float:
        """The least time, in milliseconds, in which ``work`` can be done, by the roofline."""
        return max(self.memory_ms(work), self.compute_ms(work))

    def bound(self, work: PassCost) -> Bound:
        """The slower of the two; "memory" if they take equally long."""
        return "memory" if self.memory_ms(work) >= self.compute_ms(work) else "compute"


@dataclass(frozen=True, slots=True)
class Achieved:
    """A step's share of the limit.

    Attributes:
        share: of the limit: least time / time taken. 1: as fast as the device can; above 1: see the module.
        bound: which of the two takes longer at best, moving bytes or computing.
    """

    share: float
    bound: Bound


def limits_of(started: RunStarted) -> Limits | None:
    """The limits of the device that a run was made on, if they are known."""
    if started.copy_bytes_per_second is None or started.matmul_flops_per_second is None:
        return None
    return Limits(started.copy_bytes_per_second, started.matmul_flops_per_second)


def achieved(timed: StepTimed, limits: Limits) -> Achieved | None:
    """Compares a step's passes, the draft's and the target's one after the other, with the least time for each.

    The time is ``draft_ms`` + ``verify_ms``, which includes drawing the proposals, and packing and launching the passes
    on the host, but nothing else of the step: a GPU's share is lower by what it waits for the host. Where no model
    drafts, it is ``verify_ms`` alone: a lookup is not a pass, though if both are in one batch its search is timed with
    the draft's passes. None: no time was measured.
    """
    drafting = PassCost(timed.draft_bytes, timed.draft_flops)
    verifying = PassCost(timed.verify_bytes, timed.verify_flops)
    took = timed.verify_ms + (timed.draft_ms if drafting != PassCost() else 0.0)
    if took <= 0:
        return None
    least = limits.least_ms(drafting) + limits.least_ms(verifying)
    return Achieved(least / took, limits.bound(drafting + verifying))
