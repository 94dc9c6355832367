"""Triton: writes new keys and values to their slots, quantised on the way in.

One launch stores a layer's new tokens; one program stores the key and the value of one token and KV head.
It stores what ``lab.kv_cache.formats`` stores, with the same order of operations: divisions are rounded to
nearest (``div_rn``), integers half to even. On a CPU the bits are equal. On a GPU torch itself may divide
by 127 and by 7.5 by multiplying with the rounded reciprocal, so that the reference's scale, and a number
half-way between two steps, can differ in the last place. For a vector that is not finite only this is the
same: what is read back is not finite either.
"""

import torch
import triton
import triton.language as tl

from lab.backends.gpu.launching import early, let_next_begin, wait_for_previous
from lab.kv_cache.storage import LayerStorage, parts

TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
ROUND_INT4_SCALE_UP = tl.constexpr(1 + 2**-8)
# Adding 1.5 * 2^23 to a number below 2^22 and subtracting it again leaves the nearest integer, ties to even.
WHOLE = tl.constexpr(12582912.0)


def store(layer: LayerStorage, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Write ``key`` and ``value``, [N, kv_heads, head_dim] of any strides, to ``slots``, [N] int32 or int64.

    A slot of -1 marks a row of padding, which is not written.
    """
    form, (keys, values, key_scales, value_scales) = parts(layer)
    tokens, kv_heads, dim = key.shape
    group = dim // key_scales.shape[-1] if form == "int4" else dim
    _store_kernel[tokens, kv_heads](
        key,
        value,
        slots,
        keys,
        values,
        key_scales,
        value_scales,
        *key.stride(),
        *value.stride(),
        *keys.stride()[:2],
        *key_scales.stride()[:2],
        FORMAT=form,
        DIM=dim,
        PADDED=triton.next_power_of_2(dim),
        GROUP=group,
        PADDED_GROUPS=triton.next_power_of_2(dim // group),
        PADDED_PAIRS=triton.next_power_of_2(-(-group // 2)),
        num_warps=1,
        **early(key.device),
    )


@triton.jit(do_not_specialize_on_alignment=("slots",))  # part of a larger tensor, beginning anywhere
def _store_kernel(
    key,
    value,
    slots,
    keys,
    values,
    key_scales,
    value_scales,
    key_token,
    key_head,
    key_dim,
    value_token,
    value_head,
    value_dim,
    numbers_slot,
    numbers_head,
    scales_slot,
    scales_head,
    FORMAT: tl.constexpr,
    DIM: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUPS: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
    EARLY: tl.constexpr,
):
    let_next_begin(EARLY)
    wait_for_previous(EARLY)
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    numbers = slot * numbers_slot + head * numbers_head
    scales = slot * scales_slot + head * scales_head
    new_key, new_value = key + token * key_token + head * key_head, value + token * value_token + head * value_head
    if FORMAT == "plain":
        _copy(new_key, key_dim, keys + numbers, DIM, PADDED)
        _copy(new_value, value_dim, values + numbers, DIM, PADDED)
    elif FORMAT == "int8":
        _quantise_int8(new_key, key_dim, keys + numbers, key_scales + scales, DIM, PADDED)
        _quantise_int8(new_value, value_dim, values + numbers, value_scales + scales, DIM, PADDED)
    else:
        _quantise_int4(new_key, key_dim, keys + numbers, key_scales + scales, DIM, GROUP, PADDED_GROUPS, PADDED_PAIRS)
        _quantise_int4(
            new_value, value_dim, values + numbers, value_scales + scales, DIM, GROUP, PADDED_GROUPS, PADDED_PAIRS
        )


@triton.jit
def _copy(x, stride, numbers, DIM: tl.constexpr, PADDED: tl.constexpr):
    i = tl.arange(0, PADDED)
    tl.store(numbers + i, tl.load(x + i * stride, mask=i < DIM), mask=i < DIM)


@triton.jit
def _quantise_int8(x, stride, numbers, scales, DIM: tl.constexpr, PADDED: tl.constexpr):
    i = tl.arange(0, PADDED)
    vector = tl.load(x + i * stride, mask=i < DIM, other=0.0).to(tl.float32)
    # A maximum skips NaN: let it count as infinite, so that the vector is not read back as finite.
    largest = tl.max(tl.where(vector == vector, tl.abs(vector), float("inf")), 0)
    scale = tl.maximum(tl.div_rn(largest, 127.0), TINY)
    tl.store(scales, scale)
    tl.store(numbers + i, _round(tl.div_rn(vector, scale)).to(tl.int8), mask=i < DIM)


@triton.jit
def _quantise_int4(
    x,
    stride,
    numbers,
    scales,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUPS: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
):
    """Numbers 2i and 2i + 1 share byte i, the first in its low half. A row of the tiles is a group."""
    group, pair = tl.arange(0, PADDED_GROUPS), tl.arange(0, PADDED_PAIRS)[None, :]
    inside = (group[:, None] < DIM // GROUP) & (pair < GROUP // 2)
    first = group[:, None] * GROUP + 2 * pair
    even = tl.load(x + first * stride, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(x + (first + 1) * stride, mask=inside, other=0.0).to(tl.float32)
    below = tl.maximum(_largest(-even), _largest(-odd))
    above = tl.maximum(_largest(even), _largest(odd))
    scale = tl.maximum(tl.maximum(below, above) * 0.125, tl.div_rn(tl.minimum(below, above), 7.5))
    scale = tl.maximum(scale * ROUND_INT4_SCALE_UP, TINY)
    scale = _round_to_bfloat16(tl.where(above > below, -scale, scale))
    tl.store(scales + group, scale.to(tl.bfloat16), mask=group < DIM // GROUP)
    scale = scale[:, None]
    packed = _half_byte(even, scale) | (_half_byte(odd, scale) << 4)
    tl.store(numbers + first // 2, packed.to(tl.uint8), mask=inside)


@triton.jit
def _largest(x):
    """The maximum of each row, but at least 0. NaN counts as infinite (see ``_quantise_int8``)."""
    return tl.max(tl.where(x == x, tl.maximum(x, 0.0), float("inf")), 1)


@triton.jit
def _half_byte(x, scale):
    return tl.minimum(tl.maximum(_round(tl.div_rn(x, scale)) + 8, 0.0), 15.0).to(tl.int32)


@triton.jit
def _round_to_bfloat16(x):
    """Round half to even, still as float32. By hand, since the interpreter's cast truncates."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _round(x):
    return (x + WHOLE) - WHOLE
