"""Kernels between a layer's matrices, compared with float64: in Triton's interpreter, or compiled if there is a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

from lab.backends.gpu.fused_kernels import rms_norm, rotate, swiglu
from lab.backends.gpu.store_kv import store
from lab.kv_cache.formats import KVStorage
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
