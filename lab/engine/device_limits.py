"""The best that this device does, measured with a large copy and a large matrix product.

Measured once per process for a device, a dtype and a number of threads; in about a third of a second on a CPU. The best
of several runs counts, since it is a limit.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable
from typing import TypeVar

import torch

from lab.trace.roofline import Limits
from lab.util.device_memory import is_out_of_memory
from lab.util.step_timer import StepTimer

log = logging.getLogger(__name__)

Number = TypeVar("Number", int, float)

COPY_BYTES = {"cuda": 512 * 2**20, "cpu": 128 * 2**20}
"""Size of each of the two buffers: together many times what a last-level cache holds."""
PRODUCT_SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""Rows of square matrices, tried in turn until one product takes ``PRODUCT_MS`` and is hardly faster than smaller ones,
or takes ``LONGEST_MS``."""
PRODUCT_MS = 2.0
LONGEST_MS = 20.0
RISES = 1.25
"""Factor in FLOPs a second by which a product must beat the smaller ones for a larger one to be tried after
``PRODUCT_MS``: where threads wait long for each other, as on a busy machine, a small product takes that long too."""
REPEATS = {"cuda": 10, "cpu": 3}
LEAST_SECONDS = {"cuda": 0.0, "cpu": 0.05}
"""Runs are repeated for at least this long: a few short products are all slow if something else holds the cores."""

_measuring = threading.Lock()


def _begin_anew() -> None:
    global _measuring
    _measuring = threading.Lock()


if hasattr(os, "register_at_fork"):  # a forked process lacks the thread that may hold the lock
    os.register_at_fork(after_in_child=_begin_anew)


def device_limits(device: torch.device, dtype: torch.dtype) -> Limits | None:
    """Bytes per second of a large copy, counting those read and those written, and FLOPs per second of a large product,
    on as many threads as torch uses, on CUDA by device events. None: it could not be measured (no memory for it, or no
    such product in this dtype on this device)."""
    with _measuring:  # two at once would slow each other down
        try:
            return _measured(device, dtype, torch.get_num_threads())
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):  # next time there may be enough
                return None
            raise


@functools.cache
def _measured(device: torch.device, dtype: torch.dtype, threads: int) -> Limits | None:
    try:
        with torch.inference_mode():
            return Limits(_copy_rate(device), _product_rate(device, dtype))
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        log.warning("the limits of %s could not be measured", device, exc_info=True)
        return None


def _copy_rate(device: torch.device) -> float:
    source = torch.ones(_of(COPY_BYTES, device), dtype=torch.uint8, device=device)
    destination = torch.zeros_like(source)
    return 2 * source.nbytes / _best_seconds(lambda: destination.copy_(source), device)


def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    rate = 0.0
    for size in PRODUCT_SIZES:
        # Not constants: the rate that a chip sustains depends on how many bits change.
        a, b = torch.rand(2, size, size, device=device).to(dtype)
        seconds = _best_seconds(functools.partial(torch.mm, a, b, out=torch.empty_like(a)), device)
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
