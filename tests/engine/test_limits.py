"""A device's limits: measured once, outside the time of any run, and unknown where measuring fails."""

from __future__ import annotations

import os
import signal
import time
from ctypes import c_int32
from dataclasses import astuple, dataclass

import pytest
import torch

from lab import Run, SamplingParams
from lab.backends.cpu.build import library
from lab.backends.cpu.cpu_arithmetic import CpuArithmetic
from lab.backends.interface import Arithmetic
from lab.backends.torch.arithmetic import TorchArithmetic
from lab.engine import device_limits as limits
from lab.engine import processor as intake
from lab.engine.device_limits import device_limits
from lab.trace.roofline import BEATEN, Limits
from tests import tiny_models

CPU = torch.device("cpu")
SHORT = SamplingParams(max_tokens=4, ignore_eos=True)


def has_bfloat16() -> int:
    return c_int32.in_dll(library(), "has_bfloat16_products").value


@pytest.fixture
def unmeasured(monkeypatch):
    monkeypatch.setattr(limits, "_known", {})


@dataclass(frozen=True)
class Clocked:
    """Arithmetic on a fake clock: what it is asked for is the number of seconds it takes."""

    weight_bytes: int = 8_000
    device: torch.device = CPU

    def read(self, size):
        return size / (4e9 if size == self.weight_bytes else 1e9)

    def product(self, size):
        return 2 * size**3 / 5e10


@pytest.fixture
def clock(monkeypatch, unmeasured):
    """How much longer everything takes than ``Clocked`` says, as on a busy machine: [factor]."""
    slower = [1.0]
    monkeypatch.setattr(limits, "_best_seconds", lambda seconds, device: seconds * slower[0])
    return slower


def test_the_roof_is_the_faster_of_reads_from_memory_and_of_a_buffer_as_large_as_the_weights(clock):
    assert astuple(device_limits(Clocked())) == pytest.approx((4e9, 5e10, 1e9))
    large = device_limits(Clocked(weight_bytes=10**10))  # in memory only
    assert large.bytes_per_second == large.memory_bytes_per_second == pytest.approx(1e9)


def test_limits_are_measured_once_per_arithmetic_and_thread_count(monkeypatch, unmeasured):
    asked = []
    monkeypatch.setattr(limits, "_measure", lambda arithmetic: asked.append(arithmetic) or Limits(1e9, 1e10))
    first, second = TorchArithmetic(8, CPU, torch.float32), TorchArithmetic(8, CPU, torch.bfloat16)
    for arithmetic in (first, first, second, TorchArithmetic(8, CPU, torch.float32)):
        assert device_limits(arithmetic) == Limits(1e9, 1e10)
    assert asked == [first, second]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    device_limits(first)
    assert len(asked) == 3


def test_a_run_whose_passes_beat_the_limits_has_them_measured_before_the_next(monkeypatch, unmeasured):
    rates = iter([1.0, 1e12])
    monkeypatch.setattr(limits, "_measure", lambda arithmetic: Limits(*[next(rates)] * 2))
    lab = tiny_models.engine("llama")
    for share, bound in ((lambda found: found > BEATEN, None), (lambda found: found < 0.4, None)):
        run = lab.generate("A fox", sampling=SHORT)
        assert share(run.metrics.roofline_fraction)
        assert run.metrics.roofline_bound is bound
    assert next(rates, None) is None


@pytest.mark.parametrize("rounded", [False, True])
def test_the_product_measured_in_c_is_a_linear_layers(rounded):
    """Float32 products where the processor has none of bfloat16: torch's own would be dozens of times slower there."""
    torch.manual_seed(0)
    multiply = CpuArithmetic(8, rounded=rounded and bool(has_bfloat16())).product(64)
    torch.manual_seed(0)
    x, weight = torch.rand(64, 64), torch.rand(64, 64).bfloat16().float()
    torch.testing.assert_close(multiply(), x @ weight.T, rtol=1e-2 if rounded else 1e-5, atol=1e-5)
    assert CpuArithmetic(8, rounded=False).read(4096)() == 0  # an even number of equal words


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("no more"), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
    ids=["GPU", "CPU"],
)
def test_measuring_is_retried_after_it_ran_out_of_memory(monkeypatch, clock, error):
    failing = Clocked()
    with monkeypatch.context() as patched:
        patched.setattr(limits, "_read_rate", raises(error))
        assert device_limits(failing) is None
    assert astuple(device_limits(failing)) == pytest.approx((4e9, 5e10, 1e9))


def raises(error):
    def fails(*_, **__):
        raise error

    return fails


def test_measuring_does_not_count_as_time_of_the_run(monkeypatch):
    def slow(arithmetic):
        if not measured:
            time.sleep(0.5)
        measured.append((arithmetic, time.perf_counter()))
        return Limits(1e9, 1e10)

    measured: list[tuple[Arithmetic, float]] = []
    lab = tiny_models.engine("llama")
    lab.generate("A fox", sampling=SHORT)
    monkeypatch.setattr(intake, "device_limits", slow)
    run = lab.generate("A fox", sampling=SHORT)
    arithmetic, over = measured[0]
    assert arithmetic.weight_bytes == lab.target.weight_bytes
    assert run.metrics.elapsed_ms < 1000 * (time.perf_counter() - over)
    assert (run.started.read_bytes_per_second, run.started.flops_per_second) == (1e9, 1e10)
    assert run.metrics.roofline_fraction > 0


def test_a_device_that_cannot_be_measured_still_decodes(monkeypatch, unmeasured, tmp_path):
    monkeypatch.setattr(limits, "_product_rate", raises(RuntimeError('"addmm" not implemented')))
    run = tiny_models.engine("llama").generate("A fox", sampling=SHORT)
    assert len(run.token_ids) == 4
    assert run.started.read_bytes_per_second is None
    assert run.metrics.roofline_fraction is None
    run.save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json").events == run.events


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_a_thread_that_it_lacks(monkeypatch):
    """As on a ZeroGPU Space, which forks one for every call, while another thread may be measuring."""
    monkeypatch.setattr(limits, "_measure", lambda arithmetic: None)
    with limits._measuring:
        if not (child := os.fork()):
            signal.alarm(30)  # ends it if it waits
            limits.device_limits(Clocked())
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert limits._measuring.locked()
