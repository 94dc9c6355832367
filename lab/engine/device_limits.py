"""The limits of this device, measured with the arithmetic that computes the steps: reads and matrix products.

Reads are of a buffer as large as the target's weights, again and again, as decoding reads them: a small model's stay in
a processor's own cache. A second, large buffer tells what memory itself gives. The best of several runs counts, since
it is a limit; and where a pass beats it, it was no limit (another process had the cores meanwhile), so it is measured
again before the next run. It takes about half a second on a CPU.
"""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from lab.backends.interface import Arithmetic
from lab.trace.roofline import Limits
from lab.util.device_memory import is_out_of_memory
from lab.util.step_timer import StepTimer

log = logging.getLogger(__name__)

Number = TypeVar("Number", int, float)

MEMORY_BYTES = {"cuda": 1024 * 2**20, "cpu": 128 * 2**20}
"""Size of the large buffer: many times what a last-level cache holds."""
PRODUCT_SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""Rows of square matrices, tried in turn until one product takes ``PRODUCT_MS`` and is hardly faster than smaller ones,
or takes ``LONGEST_MS``."""
PRODUCT_MS = 2.0
LONGEST_MS = 20.0
RISES = 1.25
"""Factor in FLOPs per second by which a product must beat the smaller ones for a larger one to be tried after
``PRODUCT_MS``: where threads wait long for each other, as on a busy machine, a small product takes that long too."""
REPEATS = {"cuda": 10, "cpu": 3}
LEAST_SECONDS = {"cuda": 0.0, "cpu": 0.05}
"""Runs are repeated for at least this long: a few short products are all slow if something else holds the cores."""
MOST_TRIES = 4
"""Measurements of one limit; after the last, passes may beat it, and the lab says that it is not known."""


@dataclass(slots=True)
class _Measured:
    """``limits``: the best of ``tries``; None: it cannot be measured. ``beaten``: by a pass, since."""

    limits: Limits | None
    tries: int = 1
    beaten: bool = False


_known: dict[tuple[Arithmetic, int], _Measured] = {}
_measuring = threading.Lock()


def _begin_anew() -> None:
    global _measuring
    _measuring = threading.Lock()


if hasattr(os, "register_at_fork"):  # a forked process lacks the thread that may hold the lock
    os.register_at_fork(after_in_child=_begin_anew)


def device_limits(arithmetic: Arithmetic) -> Limits | None:
    """Bytes read per second and FLOPs per second, on as many threads as torch uses, on CUDA by device events; measured
    once per process, and again after ``limits_beaten``. None: it could not be measured (no memory for it, or no such
    product on this device)."""
    with _measuring:  # two at once would slow each other down
        try:
            key = arithmetic, torch.get_num_threads()
            known = _known.get(key)
            if known is None:
                known = _known[key] = _Measured(_measure(arithmetic))
            elif known.beaten and known.tries < MOST_TRIES and known.limits:
                again = _measure(arithmetic)
                best = known.limits if again is None else known.limits.best(again)
                known = _known[key] = _Measured(best, known.tries + 1)
            return known.limits
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):  # next time there may be enough
                return None
            raise


def limits_beaten(limits: Limits) -> None:
    """Report a pass that was faster than ``limits`` allow: they are measured again before the next run."""
    for known in list(_known.values()):
        known.beaten = known.beaten or known.limits == limits


def _measure(arithmetic: Arithmetic) -> Limits | None:
    try:
        with torch.inference_mode():
            memory = _read_rate(arithmetic, most := _of(MEMORY_BYTES, arithmetic.device))
            own = _read_rate(arithmetic, max(4096, arithmetic.weight_bytes)) if arithmetic.weight_bytes < most else 0.0
            return Limits(max(own, memory), _product_rate(arithmetic), memory)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        log.warning("the limits of %s could not be measured", arithmetic.device, exc_info=True)
        return None


def _read_rate(arithmetic: Arithmetic, size: int) -> float:
    size -= size % 4
    return size / _best_seconds(arithmetic.read(size), arithmetic.device)


def _product_rate(arithmetic: Arithmetic) -> float:
    rate = 0.0
    for size in PRODUCT_SIZES:
        seconds = _best_seconds(arithmetic.product(size), arithmetic.device)
        before, rate = rate, max(rate, 2 * size**3 / seconds)
        if 1000 * seconds > (LONGEST_MS if rate > RISES * before else PRODUCT_MS):
            break
    return rate


def timed(run: Callable[[], object], device: torch.device, repeats: int, least: float = 0.0) -> list[float]:
    """Seconds that each of several runs takes, after one to warm up; more often than ``repeats`` until they add up to
    ``least``. On CUDA by device events."""
    run()
    taken: list[float] = []
    while len(taken) < repeats or sum(taken) < least:
        if device.type == "cuda":
            run()  # keeps the device busy while the next one is launched, so that launching is not timed
        clock = StepTimer(device)
        run()
        clock.mark("run")
        taken.append(clock.read()[0]["run"] / 1000)
    return taken


def _best_seconds(run: Callable[[], object], device: torch.device) -> float:
    return min(timed(run, device, _of(REPEATS, device), _of(LEAST_SECONDS, device)))


def _of(choices: dict[str, Number], device: torch.device) -> Number:
    return choices.get(device.type, choices["cpu"])
