"""The softmax of long rows compared with torch's: in Triton's interpreter, or compiled where there is a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

from lab import SamplingParams
from lab.backends.fallback import FallbackBackend, KernelState
from lab.backends.gpu import gpu_backend
from lab.backends.gpu.gpu_backend import GpuBackend
from lab.backends.gpu.softmax import CHUNK, SHORTEST, softmax
from lab.backends.torch.sampler import sample
from lab.backends.torch.torch_backend import TorchBackend
from tests.pairwise import parametrize_pairwise

pytestmark = pytest.mark.usefixtures("new_inputs", "poisoned_outputs")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@parametrize_pairwise(size=[1, CHUNK, 2 * CHUNK + 3, 5 * CHUNK], scale=[1, 30], low=[0, -120], masked=[False, True])
def test_softmax_and_argmax_are_torchs(size, scale, low, masked):
    """Also of logits far below zero, as after division by a low temperature, and of whole chunks that are masked."""
    logits = scale * torch.randn(3, size, device=DEVICE) + low
    if masked:
        logits[2, CHUNK:] = -torch.inf
    p, largest = softmax(logits)
    torch.testing.assert_close(p, logits.double().softmax(-1).float(), rtol=1e-4 if low else 1e-5, atol=1e-30)
    assert torch.equal(largest, logits.argmax(-1))


def test_tokens_that_cannot_be_have_probability_0_and_what_is_not_finite_is_noticed():
    """Whole chunks may be minus infinity, as where a vocabulary is padded. A row with NaN has no distribution."""
    logits = torch.full((4, 3 * CHUNK - 5), -torch.inf, device=DEVICE)
    logits[0, CHUNK + 1], logits[0, 5] = 3.0, 3.0
    logits[1, 0], logits[1, CHUNK] = 1.0, torch.nan
    logits[2, 0], logits[2, CHUNK] = 1.0, torch.inf
    p, largest = softmax(logits)
    assert p[0, [5, CHUNK + 1]].tolist() == [0.5, 0.5]
    assert p[0].count_nonzero() == 2
    assert largest[0] == 5
    assert p[1, CHUNK].isnan()
    assert p[2, CHUNK].isnan()
    assert p[3].isnan().all()
    assert ((largest >= 0) & (largest < logits.shape[1])).all()


@pytest.fixture
def called(monkeypatch):
    calls = []

    def counted(logits):
        calls.append(logits.shape)
        return softmax(logits)

    monkeypatch.setattr(gpu_backend, "softmax", counted)
    return calls


GREEDY, DRAWN = SamplingParams(), SamplingParams(temperature=0.7, top_k=50, top_p=0.9, seed=1)


def test_sampling_uses_it_for_a_large_vocabulary_where_kernels_compute(called):
    logits = 3 * torch.randn(3, SHORTEST, device=DEVICE)
    how, u = [GREEDY, DRAWN, replace(DRAWN, top_p=1.0)], torch.rand(3, dtype=torch.float64, device=DEVICE)
    p, tokens = GpuBackend(None, None).sample(logits, how, u)
    by_torch, same = sample(logits, how, u)
    torch.testing.assert_close(p, by_torch, rtol=1e-4, atol=1e-9)
    assert torch.equal(tokens, same)
    assert called == [(3, SHORTEST)]
    GpuBackend(None, None).sample(logits[:, 1:], how, u)
    assert len(called) == 1


def test_if_it_fails_kernels_are_given_up_and_torch_goes_on(monkeypatch):
    def failing(logits):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(gpu_backend, "softmax", failing)
    state, logits = KernelState(), torch.randn(2, SHORTEST, device=DEVICE)
    backend = FallbackBackend(lambda: GpuBackend(None, None), TorchBackend(None), state)
    p, tokens = backend.sample(logits, [GREEDY] * 2, None)
    assert torch.equal(p, logits.softmax(-1))
    assert torch.equal(tokens, logits.argmax(-1))
    assert "no such instruction" in state.failure
