"""Triton: what lies between a layer's matrix products, one kernel each.

Torch computes these with a kernel for every operation, each of which reads its input from memory and writes its output
there: seven for a norm, a dozen for a rotary embedding, two for the middle of the feed-forward network. One token has
few numbers, so what counts is not their bytes but the launches. Here everything is float32 from the first load to the
store, and rounded once.
"""

import torch
import triton
import triton.language as tl

from lab.backends.gpu.launching import early, let_next_begin, wait_for_previous
from lab.kv_cache.formats import PlainLayer


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """``weight * x / sqrt(mean(x^2) + epsilon)``, row by row (Zhang and Sennrich, 1910.07467).

    Args:
        x: [N, hidden], contiguous rows.
        weight: [hidden].

    Returns:
        [N, hidden] in the dtype of ``x``.
    """
    rows, size = x.shape
    out, padded = torch.empty_like(x), triton.next_power_of_2(size)
    _rms_norm_kernel[(rows,)](out, x, weight, epsilon, SIZE=size, PADDED=padded, num_warps=_warps(padded))
    return out


def rotate(
    qkv: torch.Tensor,
    heads: int,
    kv_heads: int,
    cosine: torch.Tensor,
    sine: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    epsilon: float = 0.0,
    layer: PlainLayer | None = None,
    slots: torch.Tensor | None = None,
) -> None:
    """Rotary embedding of queries and keys, in place (RoFormer: Su et al., 2104.09864, on halves as in Llama).

    With ``layer`` and ``slots`` it does what ``lab.backends.gpu.store_kv.store`` does in the same launch.

    Args:
        qkv: [N, (heads + 2 * kv_heads) * head_dim], contiguous rows: each token's queries, keys and values, head by
            head. Values stay as they are.
        cosine, sine: [N, head_dim].
        norms: weights, [head_dim] each, of an RMSNorm of every query and every key beforehand (Qwen3).
        epsilon: of those norms.
        layer: where keys, rotated, and values are written as well. None: nowhere.
        slots: [N] int32 or int64, where in the layer; -1: a row of padding, which is not written.
    """
    dim = cosine.shape[-1]
    # Placeholders are not read, nor written to.
    query_norm, key_norm = norms or (cosine, cosine)
    keys, values = layer.tensors if layer else (qkv[:, None],) * 2
    _rotate_kernel[len(qkv), heads + kv_heads](
        qkv,
        cosine,
        sine,
        query_norm,
        key_norm,
        epsilon,
        cosine if slots is None else slots,
        keys,
        values,
        qkv.stride(0),
        cosine.stride(0),
        *keys.stride()[:2],
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=dim // 2,
        PADDED=triton.next_power_of_2(dim // 2),
        NORMED=norms is not None,
        STORED=layer is not None,
        num_warps=1,
        **early(qkv.device),
    )


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` (Shazeer, 2002.05202), with silu(x) = x / (1 + exp(-x)).

    Args:
        gate_up: [N, 2 * intermediate], contiguous rows: each token's gates, then the numbers they gate.

    Returns:
        [N, intermediate] in the dtype of ``gate_up``.
    """
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out, block = gate_up.new_empty(rows, size), min(1024, triton.next_power_of_2(size))
    _swiglu_kernel[rows, triton.cdiv(size, block)](out, gate_up, SIZE=size, BLOCK=block, num_warps=_warps(block))
    return out


def _warps(numbers: int) -> int:
    """Enough warps for a thread to have at most 16 of a program's numbers, but no more than 8."""
    return min(8, max(1, numbers // (16 * 32)))


@triton.jit
def _rms_norm_kernel(out, x, weight, epsilon, SIZE: tl.constexpr, PADDED: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    numbers = _numbers(x + row * SIZE + i, i < SIZE)
    scale = tl.rsqrt(tl.sum(numbers * numbers, 0) / SIZE + epsilon)
    normed = numbers * scale * _numbers(weight + i, i < SIZE)
    tl.store(out + row * SIZE + i, normed.to(out.dtype.element_ty), mask=i < SIZE)


@triton.jit(do_not_specialize_on_alignment=("slots",))  # part of a larger tensor, beginning anywhere
def _rotate_kernel(
    qkv,
    cosine,
    sine,
    query_norm,
    key_norm,
    epsilon,
    slots,
    keys,
    values,
    qkv_row,
    angle_row,
    stored_slot,
    stored_head,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    NORMED: tl.constexpr,
    STORED: tl.constexpr,
    EARLY: tl.constexpr,
):
    let_next_begin(EARLY)
    wait_for_previous(EARLY)
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, PADDED)
    inside = i < HALF
    low_at = qkv + token * qkv_row + head * 2 * HALF + i
    high_at = low_at + HALF
    low, high = _numbers(low_at, inside), _numbers(high_at, inside)
    if NORMED:
        scale = tl.rsqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / (2 * HALF) + epsilon)
        if head < HEADS:
            low *= scale * _numbers(query_norm + i, inside)
            high *= scale * _numbers(query_norm + HALF + i, inside)
        else:
            low *= scale * _numbers(key_norm + i, inside)
            high *= scale * _numbers(key_norm + HALF + i, inside)
    cosines, sines = cosine + token * angle_row + i, sine + token * angle_row + i
    turned = low * _numbers(cosines, inside) - high * _numbers(sines, inside)
    high = high * _numbers(cosines + HALF, inside) + low * _numbers(sines + HALF, inside)
    tl.store(low_at, turned.to(qkv.dtype.element_ty), mask=inside)
    tl.store(high_at, high.to(qkv.dtype.element_ty), mask=inside)
    if STORED:
        slot = tl.load(slots + token).to(tl.int64)
        if (head >= HEADS) & (slot >= 0):
            at = slot * stored_slot + (head - HEADS) * stored_head + i
            tl.store(keys + at, turned.to(keys.dtype.element_ty), mask=inside)
            tl.store(keys + at + HALF, high.to(keys.dtype.element_ty), mask=inside)
            value_at = low_at + KV_HEADS * 2 * HALF
            tl.store(values + at, tl.load(value_at, mask=inside), mask=inside)
            tl.store(values + at + HALF, tl.load(value_at + HALF, mask=inside), mask=inside)


@triton.jit
def _numbers(at, mask):
    return tl.load(at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _swiglu_kernel(out, gate_up, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = _numbers(gate_up + row * 2 * SIZE + i, i < SIZE)
    up = _numbers(gate_up + row * 2 * SIZE + SIZE + i, i < SIZE)
    tl.store(out + row * SIZE + i, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=i < SIZE)
