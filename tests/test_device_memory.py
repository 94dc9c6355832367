"""The memory a step reports is never that of an earlier run, and reading it costs the step little."""

from __future__ import annotations

import pytest
import torch

from lab import device_memory
from lab.device_memory import LOOKS_A_SECOND, memory_in_use

TWO = {torch.device("cuda", 0), torch.device("cuda", 1)}


@pytest.fixture
def peaks(monkeypatch) -> dict[int, int]:
    """The peaks that the GPUs' allocators report; a test may change them."""
    bytes_of = {0: 700, 1: 30}

    def told(device: torch.device) -> dict:
        return {"allocated_bytes": {"all": {"current": 1, "peak": bytes_of[device.index]}}}

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", told)
    return bytes_of


def test_memory_of_several_gpus_is_added_up(peaks):
    assert memory_in_use(TWO) == 730


def test_a_run_reports_its_own_peak_however_soon_it_follows_another(peaks, monkeypatch):
    """The engine resets the peaks before a run, even if no time has passed since the last step."""
    monkeypatch.setattr(device_memory.time, "monotonic", lambda: 1.0)
    assert memory_in_use(TWO) == 730
    peaks.update({0: 50, 1: 3})
    assert memory_in_use(TWO) == 53
    peaks[0] = 60
    assert memory_in_use(TWO) == 63


def test_process_memory_is_read_only_a_few_times_a_second(monkeypatch):
    now, looks = [1000.0], []
    monkeypatch.setattr(device_memory.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(device_memory, "_process", lambda pid: looks.append(pid) or device_memory.psutil.Process(pid))
    device_memory._resident.cache_clear()
    for step in range(100):  # one second of steps
        now[0] = 1000 + step / 100
        assert memory_in_use({torch.device("cpu")}) > 0
    assert len(looks) == LOOKS_A_SECOND
