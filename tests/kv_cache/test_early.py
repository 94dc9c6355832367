"""Where kernels may begin before the one ahead has ended. What they do until then: ``test_kernels``."""

from __future__ import annotations

import pytest
import torch

from lab.backends.gpu import programmatic_launch as module
from lab.backends.gpu.programmatic_launch import early


@pytest.mark.parametrize(("capability", "begins"), [((8, 9), False), ((9, 0), True), ((12, 0), True)])
def test_kernels_begin_early_from_compute_capability_9_on(monkeypatch, capability, begins):
    monkeypatch.setattr(module, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    early.cache_clear()
    options = early(torch.device("cuda", 0))
    early.cache_clear()
    # A launch that such a GPU would refuse is not asked for.
    assert options == ({"EARLY": True, "launch_pdl": True} if begins else {"EARLY": False})
    assert early(torch.device("cpu")) == {"EARLY": False}


def test_no_kernel_begins_early_on_a_gpu_of_amds(monkeypatch):
    """Torch calls it "cuda", and says that its compute capability is 9.4."""
    monkeypatch.setattr(module, "INTERPRETED", False)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 4))
    early.cache_clear()
    assert early(torch.device("cuda", 0)) == {"EARLY": False}
    early.cache_clear()
