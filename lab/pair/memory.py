"""Memory of devices: what is free there, what is in use, and whether there was too little."""

from __future__ import annotations

import functools
import os
import time

import psutil
import torch

LOOKS_A_SECOND = 20
"""At the process's memory."""


def free_bytes(device: torch.device) -> int:
    """Memory that can still be taken on a device."""
    if device.type != "cuda":
        return psutil.virtual_memory().available
    # What torch holds back for reuse is free too.
    held_back = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held_back


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device had no memory left; of a CPU's, torch tells in words only."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def memory_in_use(devices: set[torch.device]) -> int:
    """Bytes: CUDA's peak since it was reset, of all its devices, or the resident size of this process."""
    if cuda := [device for device in devices if device.type == "cuda"]:
        # What max_memory_allocated looks up. Most of its time goes into laying out the numbers it does not return.
        stats = [torch.cuda.memory_stats_as_nested_dict(device) for device in cuda]
        return sum(stat["allocated_bytes"]["all"]["peak"] for stat in stats)
    return _resident(os.getpid(), int(time.monotonic() * LOOKS_A_SECOND))


@functools.lru_cache(maxsize=1)
def _resident(pid: int, look: int) -> int:
    """Bytes. Asking the system takes as long as a tenth of a step, so it is not asked in every one."""
    return _process(pid).memory_info().rss


@functools.cache
def _process(pid: int) -> psutil.Process:
    """Looking a process up takes milliseconds, so it is kept; by its id, for a forked worker is another one."""
    return psutil.Process(pid)
