"""The roofline: the least time that a device needs for a step, and how near the step came to it.

Work that moves B bytes and does F floating-point operations takes at least max(B / bandwidth, F / rate): the roofline
of Williams, Waterman and Patterson ("Roofline: An Insightful Visual Performance Model for Multicore Architectures",
CACM 2009), where it is drawn as a rate, min(peak rate, bandwidth x operational intensity).

A share above 1 is neither an error nor clipped: it says that the limits were measured too low, as on a busy machine.
Then, and where a pass is far below both (overhead, contention, too few threads, a poor kernel), nothing is said to bind
it.
"""

from dataclasses import dataclass
from typing import Literal

from lab.trace.events import RunStarted, StepTimed

Bound = Literal["memory", "compute"]

BINDS = 0.4, 1.0
"""Shares of the roofline between which it is said to bind a pass."""
OVERHEAD = 0.1
"""Share below which neither limit matters: a pass that is too small for its device waits for its launch."""
BEATEN = 1.2
"""Share from which on the limits were no limits, even if times scatter."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """Bytes to move between memory and processor, and floating-point operations to do."""

    bytes: int = 0
    flops: int = 0

    def __add__(self, other: "PassCost") -> "PassCost":
        return PassCost(self.bytes + other.bytes, self.flops + other.flops)


@dataclass(frozen=True, slots=True)
class Limits:
    """A device's peak rates: bytes read per second, from wherever a pass finds its weights (memory, or a processor's
    own cache), and FLOPs per second. Raises ValueError unless both are above 0. Times are in milliseconds.

    Attributes:
        memory_bytes_per_second: read from memory alone. None: not known (files of earlier versions).
    """

    bytes_per_second: float
    flops_per_second: float
    memory_bytes_per_second: float | None = None

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

    def nearer(self, work: PassCost) -> Bound:
        """The slower of two at best: moving the bytes or computing."""
        return "memory" if self.memory_ms(work) >= self.compute_ms(work) else "compute"

    def best(self, other: "Limits") -> "Limits":
        """The higher rate of each kind."""
        memory = max(self.memory_bytes_per_second or 0, other.memory_bytes_per_second or 0) or None
        rates = zip(self._rates, other._rates, strict=True)
        return Limits(*map(max, rates), memory)

    @property
    def _rates(self) -> tuple[float, float]:
        return self.bytes_per_second, self.flops_per_second


@dataclass(frozen=True, slots=True)
class Achieved:
    """A pass's ``share`` of the roofline, least time / time taken, and the limit that is ``nearer``."""

    share: float
    nearer: Bound

    @property
    def bound(self) -> Bound | None:
        """The limit that binds the pass. None: nothing can be said to (``BINDS``)."""
        return self.nearer if BINDS[0] <= self.share <= BINDS[1] else None


def limits_of(started: RunStarted) -> Limits | None:
    if started.read_bytes_per_second is None or started.flops_per_second is None:
        return None
    return Limits(started.read_bytes_per_second, started.flops_per_second, started.memory_bytes_per_second)


def achieved(timed: StepTimed, limits: Limits) -> Achieved | None:
    """Compares the target's pass with the least time for it. The limits are those of the target: a draft's weights may
    lie in a faster cache.

    The time is ``verify_ms``, which includes packing and launching the pass on the host: a GPU's share is lower by what
    it waits for the host. None: no time was measured.
    """
    if timed.verify_ms <= 0:
        return None
    work = PassCost(timed.verify_bytes, timed.verify_flops)
    return Achieved(limits.least_ms(work) / timed.verify_ms, limits.nearer(work))
