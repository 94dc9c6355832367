"""Device memory: how much is free, how much is in use, and whether it ran out."""

import functools
import os
import threading
import time

import psutil
import torch

from lab.util.cgroup import free_memory

CAPTURING = threading.Lock()
"""Held during the capture of a CUDA graph, one per process. Meanwhile no other thread may begin a capture, destroy a
graph, wait for the whole device or empty its allocator: CUDA permits none of it, and the capture fails."""
OUT_OF_MEMORY = ("DefaultCPUAllocator: ", "out of memory", "_STATUS_ALLOC_FAILED")
"""Texts of errors that no type distinguishes: torch's for a CPU (what follows depends on the system), the CUDA
driver's ("CUDA error: out of memory", "Triton Error [CUDA]: out of memory"), and those of cuBLAS and its like."""
SAMPLES_PER_SECOND = 20
"""How often, at most, the process's memory is measured."""


def free_bytes(device: torch.device) -> int:
    """Memory that can still be allocated on a device: of main memory, no more than this process's container allows; of
    a GPU's, what its driver has, because what torch then still holds are gaps between tensors in use, and larger ones
    do not fit there."""
    if device.type != "cuda":
        return int(min(psutil.virtual_memory().available, free_memory()))
    release_cached_memory()
    return torch.cuda.mem_get_info(device)[0]


def release_cached_memory() -> None:
    """Give back to the GPUs' drivers what torch has reserved for reuse, as far as nothing next to it is in use."""
    with CAPTURING:
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in OUT_OF_MEMORY)


def memory_in_use(devices: set[torch.device]) -> int:
    """Bytes: CUDA's peak since it was last reset, summed over its devices, or the resident size of this process."""
    if cuda := [device for device in devices if device.type == "cuda"]:
        # The figure behind max_memory_allocated, which spends most of its time laying out others it does not return.
        stats = [torch.cuda.memory_stats_as_nested_dict(device) for device in cuda]
        return sum(stat["allocated_bytes"]["all"]["peak"] for stat in stats)
    return _resident(os.getpid(), int(time.monotonic() * SAMPLES_PER_SECOND))


@functools.lru_cache(maxsize=1)
def _resident(pid: int, look: int) -> int:
    """Bytes. Asking the system takes as long as a tenth of a step, so not every step does."""
    return _process(pid).memory_info().rss


@functools.cache
def _process(pid: int) -> psutil.Process:
    """Looking up a process takes milliseconds, so it is cached, by id: a forked worker is another process."""
    return psutil.Process(pid)
