"""A device's limits: measured once, outside the time of any run, and unknown where measuring fails."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from lab import Run, SamplingParams
from lab.engine import device_limits as limits
from lab.engine import processor as intake
from lab.engine.device_limits import device_limits
from lab.trace.roofline import Limits
from tests import tiny_models

CPU = torch.device("cpu")
SHORT = SamplingParams(max_tokens=4, ignore_eos=True)


@pytest.fixture
def unmeasured():
    limits._measured.cache_clear()
    yield
    limits._measured.cache_clear()


def test_a_small_product_that_only_waits_is_no_limit(monkeypatch):
    """Threads that wait milliseconds for each other make a small product slow, and a larger one no slower."""
    seconds = iter([8e-3, 8e-3, 24e-3])
    ran = []
    monkeypatch.setattr(limits, "_best_seconds", lambda run, device: ran.append(run()) or next(seconds))
    assert limits._product_rate(CPU, torch.float32) == 2 * 1024**3 / 24e-3
    assert [len(product) for product in ran] == [256, 512, 1024]


def test_limits_are_measured_once_per_device_dtype_and_thread_count(monkeypatch, unmeasured):
    asked = []
    monkeypatch.setattr(limits, "_copy_rate", lambda device: 1e9)
    monkeypatch.setattr(limits, "_product_rate", lambda device, dtype: asked.append(dtype) or 1e10)
    for dtype in (torch.float32, torch.float32, torch.bfloat16):
        assert device_limits(CPU, dtype) == Limits(1e9, 1e10)
    assert asked == [torch.float32, torch.bfloat16]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    device_limits(CPU, torch.float32)
    assert len(asked) == 3


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("no more"), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
    ids=["GPU", "CPU"],
)
def test_measuring_is_retried_after_it_ran_out_of_memory(monkeypatch, unmeasured, error):
    rates = iter([error, 1e9])

    def rate(device):
        if isinstance(found := next(rates), Exception):
            raise found
        return found

    monkeypatch.setattr(limits, "_copy_rate", rate)
    monkeypatch.setattr(limits, "_product_rate", lambda device, dtype: 1e10)
    assert device_limits(CPU, torch.float32) is None
    assert device_limits(CPU, torch.float32) == Limits(1e9, 1e10)


def test_measuring_does_not_count_as_time_of_the_run(monkeypatch):
    def slow(device, dtype):
        if not measured:
            time.sleep(0.5)
        measured.append((dtype, time.perf_counter()))
        return Limits(1e9, 1e10)

    measured: list[tuple[torch.dtype, float]] = []
    lab = tiny_models.engine("llama")
    lab.generate("A fox", sampling=SHORT)
    monkeypatch.setattr(intake, "device_limits", slow)
    run = lab.generate("A fox", sampling=SHORT)
    dtype, over = measured[0]
    assert dtype == torch.float32
    assert run.metrics.elapsed_ms < 1000 * (time.perf_counter() - over)
    assert (run.started.copy_bytes_per_second, run.started.matmul_flops_per_second) == (1e9, 1e10)
    assert run.metrics.limit_share > 0


def test_a_device_that_cannot_be_measured_still_decodes(monkeypatch, unmeasured, tmp_path):
    def fails(*_, **__):
        raise RuntimeError('"addmm" not implemented')

    monkeypatch.setattr(limits, "_product_rate", fails)
    run = tiny_models.engine("llama").generate("A fox", sampling=SHORT)
    assert len(run.token_ids) == 4
    assert run.started.copy_bytes_per_second is None
    assert run.metrics.limit_share is None
    run.save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json").events == run.events


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_a_thread_that_it_lacks(monkeypatch):
    """As on a ZeroGPU Space, which forks one for every call, while another thread may be measuring."""
    monkeypatch.setattr(limits, "_measured", lambda *_: None)
    with limits._measuring:
        if not (child := os.fork()):
            signal.alarm(30)  # ends it if it waits
            limits.device_limits(CPU, torch.float32)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert limits._measuring.locked()
