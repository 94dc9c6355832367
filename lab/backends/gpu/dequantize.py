"""Triton: from the numbers that a quantised cache holds to those that tensor cores multiply, within registers.

Where few rows share that work, bytes are loaded in pairs: only two-byte numbers reach the tensor cores transposed, as
values must, without being gathered one by one. The two or four neighbours in such a number are not interleaved again:
each of them is a part, which has a tile of keys or values of its own and its own dimensions of the query.

INT8's keys need not be converted at all if there are few rows: they are multiplied as the integers that they are, by
queries of 15 bits, in two halves.
"""

import torch
import triton
import triton.language as tl

PTX = tl.constexpr(torch.version.hip is None)
"""Whether kernels may have instructions of NVIDIA's. AMD's GPUs are "cuda" to torch, too."""


def _parts(dequantise: str, shifts: tuple[int, ...]) -> tl.constexpr:
    """PTX for each part of two neighbouring numbers of 16 bits at once, which Triton would unpack."""
    head = "{{ .reg .b32 x, y, z; shr.u32 x, $1, {};"
    return tl.constexpr(tuple(head.format(shift) + dequantise + "}" for shift in shifts))


# In 128 as bfloat16, which is 0x4300, the last bit is worth 1: small numbers are added with "or", and need not be
# converted. A multiply-add by 1 or -1 (0x3F80, 0xBF80) then takes 128 away exactly: 128 + 8 from half a byte, and from
# a byte's lower seven bits 128 + its sign bit's value.
INT4_PARTS = _parts(
    "lop3.b32 x, x, 0x000F000F, 0x43004300, 0xEA;"
    "mov.b32 y, 0x3F803F80; mov.b32 z, 0xC308C308; fma.rn.bf16x2 $0, x, y, z;",
    (0, 4, 8, 12),
)
INT8_PARTS = _parts(
    "lop3.b32 y, x, 0x00800080, 0x43004300, 0xEA; lop3.b32 x, x, 0x007F007F, 0x43004300, 0xEA;"
    "mov.b32 z, 0xBF80BF80; fma.rn.bf16x2 $0, y, z, x;",
    (0, 8),
)


@triton.jit
def part_of(numbers, part: tl.constexpr, scale, FORMAT: tl.constexpr, DTYPE: tl.constexpr):
    """One part of every stored number, times its scale if there is one."""
    if PTX and FORMAT != "plain" and tl.bfloat16 == DTYPE and tl.int16 == numbers.dtype:
        code: tl.constexpr = INT8_PARTS[part] if FORMAT == "int8" else INT4_PARTS[part]
        x = tl.inline_asm_elementwise(code, "=r,r", [numbers], tl.bfloat16, is_pure=True, pack=2)
    elif FORMAT == "int4":
        # As above; in 2^23 as float32 the last bit is worth 1.
        half = (numbers >> 4 * part) & 15
        if tl.bfloat16 == DTYPE:
            x = (half.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True) - 136
        else:
            x = (half.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - 8388616
    elif FORMAT == "int8":
        x = (numbers >> 8 * part).to(tl.int8).to(DTYPE)
    else:
        x = numbers
    if scale is not None:
        x = x * scale
    return x.to(DTYPE)


@triton.jit
def group_scales(scales, at, inside, GROUPS: tl.constexpr, PADDED: tl.constexpr, PADDED_GROUP: tl.constexpr):
    """The scale of every stored number. Each is loaded once and spread over its group."""
    group = tl.arange(0, PADDED // PADDED_GROUP)[None, :]
    scale = tl.load(scales + at[:, None] + group, mask=inside[:, None] & (group < GROUPS), other=0.0)
    scale = tl.broadcast_to(scale[:, :, None], (scale.shape[0], scale.shape[1], PADDED_GROUP))
    return tl.reshape(scale, (scale.shape[0], PADDED))


@triton.jit
def halves(x):
    """Each row of x, [rows, dims] float32, in 15 bits: two halves that follow each other, int8 [2 rows, dims], and its
    unit, [rows] float32. x is (128 x the first + the second) x the unit, give or take half a unit: 1/32512 of the
    row's largest number; if any is not finite, the unit is NaN.
    """
    unit = tl.maximum(tl.max(tl.abs(x), 1), 1e-30) / (127 * 128)
    unit += 0 * tl.sum(x, 1)  # NaN if anything is not finite, which a maximum does not tell
    x = tl.floor(x / unit[:, None] + 0.5)
    high = tl.floor(x / 128 + 0.5)
    both = tl.join(high, x - 128 * high)  # [rows, dims, 2]
    both = tl.reshape(tl.permute(both, (0, 2, 1)), [2 * x.shape[0], x.shape[1]])
    return both.to(tl.int8), unit
