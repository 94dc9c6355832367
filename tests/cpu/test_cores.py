"""How many threads a process in a container should use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from lab.backends.cpu import cpu_count as module
from lab.util import cgroup


@pytest.fixture
def system(monkeypatch, tmp_path):
    """Eight cores, and a tree of control groups: ``system(own, {file: contents})`` writes them and counts the cores."""
    monkeypatch.setattr(cgroup, "PROCESS_GROUPS", tmp_path / "own")
    monkeypatch.setattr(cgroup, "CGROUP_ROOT", tmp_path / "groups")
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: range(8), raising=False)

    def counted(own: str | None, files: dict[str, str]) -> int:
        if own is not None:
            cgroup.PROCESS_GROUPS.write_text(own)
        for name, contents in files.items():
            file = cgroup.CGROUP_ROOT / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(contents + "\n")
        return module.cores.__wrapped__()

    return counted


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"cpu.max": "max 100000"}, 8),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/\n", {"cpu.max": "150000 100000"}, 2),
        ("0::/pod/its\n", {"pod/its/cpu.max": "max 100000", "pod/cpu.max": "300000 100000"}, 3),
        ("0::/docker/unseen\n", {"cpu.max": "200000 100000"}, 2),
        ("5:memory:/x\n4:cpu,cpuacct:/\n0::/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("4:cpu,cpuacct:/d\n", {"cpu/d/cpu.cfs_quota_us": "250000", "cpu/d/cpu.cfs_period_us": "100000"}, 3),
        ("\nnonsense\n", {"cpu.max": "many"}, 8),
        (None, {}, 8),
    ],
)
def test_no_more_cores_count_than_the_control_groups_grant(system, own, files, expected):
    assert system(own, files) == expected


@pytest.mark.parametrize(("affinity", "machine", "expected"), [({5}, 8, 1), (None, 6, 6), (None, None, 1)])
def test_cores_are_limited_by_cpu_affinity_where_it_exists(system, monkeypatch, affinity, machine, expected):
    monkeypatch.setattr(module.os, "cpu_count", lambda: machine)
    if affinity:
        monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: affinity)
    else:
        monkeypatch.delattr(module.os, "sched_getaffinity")
    assert system("0::/\n", {}) == expected


@pytest.mark.parametrize(("by_torch", "used"), [(2, 2), (64, 3)])
def test_c_is_given_no_more_threads_than_there_are_cores(monkeypatch, by_torch, used):
    """Torch counts the machine's cores. In a container limited to half of one, two threads wait for each other."""
    monkeypatch.setattr(module, "cores", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: by_torch)
    assert module.threads() == used


def test_cores_are_counted_without_importing_torch():
    """Torch fixes its number of threads when it is imported."""
    code = "import sys; from lab.backends.cpu.cpu_count import cores; print(cores(), 'torch' in sys.modules)"
    count, torch_too = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    assert 1 <= int(count) <= os.cpu_count()
    assert torch_too == "False"
