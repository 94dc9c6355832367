"""Cores that this process may keep busy, often fewer than its machine has. Needed before torch is imported."""

import functools
import math
import os

from lab.util.cgroup import cpu_quota


@functools.cache
def cores() -> int:
    """The cores it may run on, but no more than its quota of their time: threads beyond that wait for each other while
    the system lets none of them run.
    """
    held = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(held, cpu_quota())))


def threads() -> int:
    """Number of threads of a step in C: torch's, but no more than there are ``cores``."""
    import torch

    return min(torch.get_num_threads(), cores())
