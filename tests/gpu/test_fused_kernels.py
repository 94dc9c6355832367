"""Kernels but for attention, compared with float64 or torch: in Triton's interpreter, or compiled if there is a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

from lab import SamplingParams
from lab.backends.fallback import FallbackBackend, KernelState
from lab.backends.gpu import fused_product as product
from lab.backends.gpu import gpu_backend
from lab.backends.gpu.fused_kernels import rms_norm, rotate, swiglu
from lab.backends.gpu.fused_product import MOST_ROWS, add_product, gated_product, normed_product
from lab.backends.gpu.gpu_backend import GpuBackend
from lab.backends.gpu.softmax import CHUNK, SHORTEST, softmax
from lab.backends.gpu.store_kv import store
from lab.backends.torch.sampler import sample
from lab.backends.torch.torch_backend import TorchBackend
from lab.kv_cache.storage import KVStorage
from tests.pairwise import parametrize_pairwise

pytestmark = pytest.mark.usefixtures("new_inputs", "poisoned_outputs")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ERROR = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Largest difference from float64, relative to a number's size plus a thousandth: one step of the dtype (the
interpreter truncates instead of rounding)."""

DTYPES = list(ERROR)


def error(ours: torch.Tensor, exact: torch.Tensor, size: torch.Tensor | None = None) -> float:
    """The largest error, relative to the one allowed for the dtype. ``size``: of the terms that were added up."""
    size = exact.abs() if size is None else size
    return ((ours.double() - exact).abs() / (size + 1e-3)).max().item() / ERROR[ours.dtype]


@parametrize_pairwise(size=[1, 48, 576, 4096], dtype=DTYPES)
def test_an_rms_norm_is_close_to_float64(dtype, size):
    """Rows of very different sizes, one of them all zeros, where epsilon prevents a division by 0."""
    x = torch.randn(5, size, device=DEVICE) * torch.logspace(-2, 2, 5, device=DEVICE)[:, None]
    x[3] = 0
    x, weight = x.to(dtype), torch.randn(size, device=DEVICE).to(dtype)
    exact = F.rms_norm(x.double(), (size,), weight.double(), 1e-5)
    assert error(rms_norm(x, weight, 1e-5), exact) < 1


@parametrize_pairwise(size=[1, 96, 1536], dtype=DTYPES)
def test_a_swiglu_gate_is_close_to_float64(dtype, size):
    gate_up = (4 * torch.randn(3, 2 * size, device=DEVICE)).to(dtype)
    gate_up[:2, 0] = torch.tensor([-2e3, 2e3])  # closed, and wide open: neither overflows
    gate, up = gate_up.double().chunk(2, -1)
    assert error(swiglu(gate_up), F.silu(gate) * up) < 1


def angles(tokens: int, dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines [tokens, dim]. Their halves differ, unlike those of any known model."""
    turned = 7 * torch.randn(tokens, dim, device=DEVICE)
    return turned.cos().to(dtype), turned.sin().to(dtype)


@parametrize_pairwise(shape=[(4, 2, 12), (3, 1, 64), (2, 2, 128)], dtype=DTYPES, normed=[False, True])
def test_queries_and_keys_are_rotated_and_values_are_not(shape, dtype, normed):
    heads, kv_heads, dim = shape
    tokens, epsilon = 5, 1e-6
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, device=DEVICE).to(dtype)
    cosine, sine = angles(tokens, dim, dtype)
    norms = tuple(torch.randn(2, dim, device=DEVICE).to(dtype)) if normed else None
    *turning, value = qkv.clone().view(tokens, -1, dim).split((heads, kv_heads, kv_heads), 1)
    exact, size = [], []
    for x, norm in zip(turning, norms or (None, None), strict=True):
        x = x.double() if norm is None else F.rms_norm(x.double(), (dim,), norm.double(), epsilon)
        low, high = x.chunk(2, -1)
        straight, across = x * cosine.double()[:, None], torch.cat((-high, low), -1) * sine.double()[:, None]
        exact.append(straight + across)
        size.append(straight.abs() + across.abs())
    rotate(qkv, heads, kv_heads, cosine, sine, norms, epsilon)
    turned, untouched = qkv.view(tokens, -1, dim).split((heads + kv_heads, kv_heads), 1)
    assert error(turned, torch.cat(exact, 1), torch.cat(size, 1)) < 1
    assert torch.equal(untouched, value)


@parametrize_pairwise(dtype=DTYPES, normed=[False, True])
def test_rotated_keys_and_values_are_stored_in_the_same_launch(dtype, normed):
    """The same bits, in no slot but their own, and none of a row of padding."""
    tokens, heads, kv_heads, dim = 4, 3, 2, 12
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim, device=DEVICE).to(dtype)
    norms = tuple(torch.randn(2, dim, device=DEVICE).to(dtype)) if normed else None
    shape = {"layers": 1, "kv_heads": kv_heads, "head_dim": dim, "dtype": dtype, "device": DEVICE}
    ours, theirs = (KVStorage("auto", 9, **shape).layers[0] for _ in range(2))
    for tensor in (*ours.tensors, *theirs.tensors):
        tensor.zero_()
    slots = torch.tensor([5, -1, 0, 7], dtype=torch.int32, device=DEVICE)
    alone, known = qkv.clone(), angles(tokens, dim, dtype)
    rotate(alone, heads, kv_heads, *known, norms, 1e-6)
    rotate(qkv, heads, kv_heads, *known, norms, 1e-6, ours, slots)
    assert torch.equal(qkv, alone)
    store(theirs, slots, *alone.view(tokens, -1, dim).split((heads, kv_heads, kv_heads), 1)[1:])
    for stored, expected in zip(ours.tensors, theirs.tensors, strict=True):
        assert expected[5].any()
        assert torch.equal(stored, expected)


def test_nan_stays_nan_and_within_its_own_row():
    x = torch.randn(3, 48, device=DEVICE)
    x[1, 7] = torch.nan
    for out in (rms_norm(x, torch.ones(48, device=DEVICE), 1e-6), swiglu(x)):
        assert out[1].isnan().any()
        assert out[[0, 2]].isfinite().all()


# -- products of few rows --------------------------------------------------------------------

EPSILON = 1e-5
STEP = 8e-3
"""A step of bfloat16, relative. The interpreter truncates instead of rounding."""


class ProductCase:
    """A matrix, a norm and rows of very different sizes in bfloat16, and the normed rows in float64."""

    def __init__(self, rows: int, inputs: int, outputs: int) -> None:
        sizes = torch.logspace(-2, 2, rows)[:, None]
        self.x = self._made(rows, inputs, scale=sizes)
        self.norm = self._made(inputs)
        self.weight, self.bias = self._made(outputs, inputs), self._made(outputs)
        self.to = self._made(rows, outputs, scale=sizes)
        self.normed = F.rms_norm(self.x.double(), (inputs,), self.norm.double(), EPSILON)

    def assert_near(self, ours: torch.Tensor, exact: torch.Tensor, size: torch.Tensor) -> None:
        """``size``: of the terms that were added up; they are rounded once before, and their sum once after. The errors
        of their rounding, at most half a step each, add up to a third of ``size`` steps (standard deviation)."""
        assert ours.dtype == torch.bfloat16
        fits = len(ours) <= MOST_ROWS and self.x.shape[1] % 16 == ours.shape[1] % 32 == 0
        steps = 1 if fits else 4  # torch rounds in between
        allowed = STEP * steps * (exact.abs() + size) + 1e-6
        assert ((ours.double() - exact).abs() / allowed).max() < 1

    def _made(self, *shape: int, scale: torch.Tensor | float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape) * scale).bfloat16().to(DEVICE)


def length(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[rows, outputs]: root of the sum of squares of a product's terms, to which their rounding errors grow."""
    return (x.double().square() @ weight.double().square().t()).sqrt()


@parametrize_pairwise(
    kind=["normed", "normed, biased", "gated", "added"],
    rows=[1, 5, MOST_ROWS, MOST_ROWS + 1],  # the last is too many, and left to torch
    # Several tiles per row, of the largest and of the smallest size; and no whole number of tiles, left to torch.
    shape=[(512, 64), (48, 32), (56, 32), (64, 7)],
)
def test_a_product_is_close_to_float64(kind, rows, shape):
    inputs, outputs = shape
    case = ProductCase(rows, inputs, outputs * (1 + (kind == "gated")))
    if kind == "gated":
        case.weight /= 4
        ours = gated_product(case.x, case.norm, EPSILON, case.weight)
        gate, up = F.linear(case.normed, case.weight.double()).chunk(2, -1)
        of_gate, of_up = length(case.normed, case.weight).chunk(2, -1)
        size = of_gate * up.abs() + of_up * F.silu(gate).abs() + of_gate * of_up / 100
        case.assert_near(ours, F.silu(gate) * up, size)
    elif kind == "added":
        exact = case.to.double() + F.linear(case.x.double(), case.weight.double())
        ours = add_product(case.to, case.x, case.weight)
        assert ours is case.to
        case.assert_near(ours, exact, length(case.x, case.weight))
    else:
        bias = case.bias if "biased" in kind else None
        ours = normed_product(case.x, case.norm, EPSILON, case.weight, bias)
        exact = F.linear(case.normed, case.weight.double(), bias if bias is None else bias.double())
        case.assert_near(ours, exact, length(case.normed, case.weight))


def everything(case: ProductCase) -> list[torch.Tensor]:
    return [
        normed_product(case.x, case.norm, EPSILON, case.weight, case.bias),
        gated_product(case.x, case.norm, EPSILON, case.weight),
        add_product(case.to.clone(), case.x, case.weight),
    ]


def test_a_row_gives_the_same_bits_alone_and_in_a_batch():
    """A verification computes of a token what its own decode step would. NaN stays in its row."""
    case = ProductCase(16, 512, 64)
    case.x[3], case.x[9] = 0, torch.nan
    together = everything(case)
    for row in (0, 3, 15):
        alone = ProductCase(1, 1, 1)
        for name in ("x", "to"):
            setattr(alone, name, getattr(case, name)[row : row + 1].clone())
        for name in ("norm", "weight", "bias"):
            setattr(alone, name, getattr(case, name))
        for ours, one in zip(together, everything(alone), strict=True):
            assert torch.equal(ours[row], one[0])
            assert ours[row].isfinite().all()
            assert ours[9].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_dtypes_are_left_to_torch(monkeypatch, dtype):
    """In float16 an input may overflow when it is multiplied by a norm's weight before its scale."""
    monkeypatch.setattr(product, "_launch", None)
    x, norm, weight = 3e4 + torch.zeros(2, 64), torch.full([64], 8.0), torch.eye(64)
    x, norm, weight = (tensor.to(DEVICE, dtype) for tensor in (x, norm, weight))
    assert (normed_product(x, norm, EPSILON, weight, None) == 8).all()
    assert gated_product(x, norm, EPSILON, weight).isfinite().all()
    assert (add_product(x / 2, x / 4, weight) == 3e4 * 0.75).all()


@pytest.mark.parametrize("why", ["inputs", "outputs", "a matrix that lies on its side"])
def test_shapes_and_layouts_that_do_not_fit_the_tiles_are_left_to_torch(monkeypatch, why):
    monkeypatch.setattr(product, "_launch", None)
    case = ProductCase(2, 56 if why == "inputs" else 64, 14 if why == "outputs" else 32)
    if why == "a matrix that lies on its side":
        case.weight = case.weight.t().contiguous().t()
    ours = add_product(case.to.clone(), case.x, case.weight)
    assert torch.equal(ours, case.to.addmm(case.x, case.weight.t()))
    assert len(normed_product(case.x, case.norm, EPSILON, case.weight, None)) == len(case.x)
    assert len(gated_product(case.x, case.norm, EPSILON, case.weight)) == len(case.x)


# -- softmax ---------------------------------------------------------------------------------


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
