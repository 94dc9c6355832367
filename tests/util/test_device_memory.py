"""Free memory is what a container leaves, or a GPU's driver; the memory a step reports is never that of an earlier
run, and reading it costs the step little."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lab.util import cgroup, device_memory
from lab.util.device_memory import CAPTURING, free_bytes, memory_in_use

FILES = "anon 500\nactive_file 20\ninactive_file 3\n"
"""A group's memory.stat: 23 bytes can be given up."""


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        (None, {}, 10_000),
        ("0::/\n", {}, 10_000),
        ("0::/\n", {"memory.max": "max", "memory.current": "600", "memory.stat": FILES}, 10_000),
        ("0::/\n", {"memory.max": "90000", "memory.current": "600", "memory.stat": FILES}, 10_000),
        ("0::/\n", {"memory.max": "1000", "memory.current": "600", "memory.stat": FILES}, 423),
        ("0::/\n", {"memory.max": "100", "memory.current": "600", "memory.stat": FILES}, 0),  # lowered just now
        ("0::/pod/its\n", {"pod/memory.max": "1000", "pod/memory.current": "600", "pod/memory.stat": FILES}, 423),
        (
            "9:cpu:/\n4:memory:/docker/unseen\n0::/\n",
            {
                "memory/memory.limit_in_bytes": "1000",
                "memory/memory.usage_in_bytes": "600",
                "memory/memory.stat": "active_file 1\ninactive_file 1\ntotal_active_file 20\ntotal_inactive_file 3\n",
            },
            423,
        ),
        (
            "4:memory:/\n",
            {"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "600"},  # no limit
            10_000,
        ),
    ],
)
def test_no_more_memory_is_free_than_the_control_groups_allow(monkeypatch, tmp_path, own, files, expected):
    """On a machine where 10,000 bytes are available."""
    monkeypatch.setattr(device_memory.psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000))
    monkeypatch.setattr(cgroup, "PROCESS_GROUPS", tmp_path / "own")
    monkeypatch.setattr(cgroup, "CGROUP_ROOT", tmp_path / "groups")
    if own is not None:
        cgroup.PROCESS_GROUPS.write_text(own)
    for name, contents in files.items():
        file = cgroup.CGROUP_ROOT / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(contents)
    assert free_bytes(torch.device("cpu")) == expected


def test_free_on_a_gpu_is_what_its_driver_has_when_the_allocator_has_given_back_what_it_can(monkeypatch):
    """What it cannot give back lies between tensors that are in use: larger ones do not fit there."""
    free, emptied = [6_000], []

    def empty() -> None:
        emptied.append(CAPTURING.locked())
        free[0] += 500

    monkeypatch.setattr(torch.cuda, "empty_cache", empty)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[0], 24_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 17_000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 15_000)
    assert free_bytes(torch.device("cuda")) == 6_500
    assert emptied == [True]  # not during a capture
    assert not CAPTURING.locked()


def test_memory_of_several_gpus_is_added_up_anew_for_each_run(monkeypatch):
    """The engine resets the peaks before a run, even if no time has passed since the last step."""
    peaks = {}

    def stats(device: torch.device) -> dict:
        return {"allocated_bytes": {"all": {"current": 1, "peak": peaks[device.index]}}}

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", stats)
    monkeypatch.setattr(device_memory.time, "monotonic", lambda: 1.0)
    for first, second in ((700, 30), (50, 3), (60, 3)):
        peaks.update({0: first, 1: second})
        assert memory_in_use({torch.device("cuda", 0), torch.device("cuda", 1)}) == first + second
