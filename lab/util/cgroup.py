"""Limits of Linux's control groups (``docker --cpus --memory``, Kubernetes) on this process. Imports no torch, whose
number of threads depends on it."""

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PROCESS_GROUPS = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")


def cpu_quota() -> float:
    """Time, in cores; infinite without a limit."""
    return _least("cpu", _quota)


def free_memory() -> float:
    """Bytes that can still be allocated; infinite without a limit."""
    return _least("memory", _free)


def _least(controller: str, left: Callable[[Path], float]) -> float:
    """The least that is ``left`` by one of this process's groups, of what a controller ("cpu") limits. A group's limit
    holds for all groups in it. A container often sees its own group as the outermost one."""
    try:
        lines = PROCESS_GROUPS.read_text(errors="replace").splitlines()
    except OSError:  # no Linux
        return math.inf
    least = math.inf
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        if not controllers or controller in controllers.split(","):
            outermost = CGROUP_ROOT / (controller if controllers else "")  # version 1 has a tree for each controller
            group = outermost / path.lstrip("/")
            while group.is_relative_to(outermost):
                least = min(least, left(group))
                group = group.parent
    return least


def _quota(group: Path) -> float:
    with suppress(OSError, ValueError):  # "max", of version 2
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period if quota > 0 else math.inf  # -1, of version 1
    return math.inf


def _free(group: Path) -> float:
    for names in (("max", "current"), ("limit_in_bytes", "usage_in_bytes")):  # versions 2 and 1
        with suppress(OSError, ValueError):  # "max", of version 2
            limit, used = (int((group / f"memory.{name}").read_text()) for name in names)
            return max(0, limit - used + _of_files(group))
    return math.inf


def _of_files(group: Path) -> int:
    """Bytes in use that only keep the contents of files, such as weights just read: they are given up first."""
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    # In version 1, "total" counts the groups in this one, as everything does in version 2.
    return sum(int(stat.get(f"total_{name}", stat.get(name, 0))) for name in ("active_file", "inactive_file"))
