"""How many cores this process may keep busy, often fewer than its machine has. Asked before torch is imported."""

from __future__ import annotations

import functools
import math
import os
from contextlib import suppress
from pathlib import Path

OWN = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


@functools.cache
def cores() -> int:
    """The cores it may run on, but no more than its quota of their time: threads beyond that wait for each other while
    the system lets none of them run.
    """
    held = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(held, _quota())))


def _quota() -> float:
    """The CPU quota in cores that control groups (``docker --cpus``, Kubernetes) set; infinite without a limit.

    A group's limit holds for all groups in it. A container often sees its own group as the outermost one.
    """
    try:
        lines = OWN.read_text(errors="replace").splitlines()
    except OSError:  # no Linux
        return math.inf
    least = math.inf
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers or "cpu" in controllers.split(","):
            outermost = GROUPS / "cpu" if controllers else GROUPS  # version 1 has a tree for each controller
            group = outermost / path.lstrip("/")
            while group.is_relative_to(outermost):
                least = min(least, _limit(group))
                group = group.parent
    return least


def _limit(group: Path) -> float:
    with suppress(OSError, ValueError):  # "max", of version 2
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period if quota > 0 else math.inf  # -1, of version 1
    return math.inf
