"""Triton: the products of a step of few rows, which wait for memory.

A step of one token, or of a verify's few, multiplies every weight by next to nothing: its time is that of reading the
matrices. What is done before and after a product by launches of their own comes on top, and so does a second launch
that torch's product may need to add up what several programs found. Here a product takes along what lies beside
it: the norm of its input, the gate of its output, the residual stream it is added to.

A program reads whole rows of the matrix, a tile at a time, and always multiplies a tile of 16 rows, tensor cores'
smallest, of which those that are not there are zeros. So a row's result does not depend on the others: a token
comes out of a verify with the same bits as out of a step of its own, which of torch's product nobody promises.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from lab.fused.kernels import rms_norm, swiglu
from lab.kv.attend_kernel import INTERPRETED

MOST_ROWS = 16
OUTPUTS, MOST_INPUTS = 16, 256
"""Of a program's tile of the matrix. Three tiles are on their way while one is multiplied, and three or four programs
run at once on a processor: more bytes than it takes to keep memory busy (26 KB a processor of an H200, at 0.8
microseconds until a byte comes). Two warps take 115 instructions for a KB of the matrix with a norm, 68 with a norm and
a gate, 33 without; while a KB comes, such a processor could issue some 220. Counted in the machine code for compute
capability 9.0 by Triton 3.6, not measured on a GPU."""


def normed_product(
    x: torch.Tensor, norm: torch.Tensor, epsilon: float, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """``rms_norm(x) weight^T + bias``: [N, inputs], [inputs], [outputs, inputs], [outputs] -> [N, outputs].

    ``epsilon``: see ``rms_norm``. Here and below, the rows of ``x`` lie next to each other.
    """
    if not _is_ours(x, weight, len(weight)):
        return F.linear(rms_norm(x, norm, epsilon), weight, bias)
    out = x.new_empty(len(x), len(weight))
    _launch(out, x, weight, norm=norm, epsilon=epsilon, bias=bias)
    return out


def gated_product(x: torch.Tensor, norm: torch.Tensor, epsilon: float, weight: torch.Tensor) -> torch.Tensor:
    """``swiglu(rms_norm(x) weight^T)``: [N, inputs], [inputs], [2 * outputs, inputs] -> [N, outputs]."""
    if not _is_ours(x, weight, len(weight) // 2):
        return swiglu(F.linear(rms_norm(x, norm, epsilon), weight))
    out = x.new_empty(len(x), len(weight) // 2)
    _launch(out, x, weight, norm=norm, epsilon=epsilon, gated=True)
    return out


def add_product(to: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``to += x weight^T``, rounded once: [N, outputs], [N, inputs], [outputs, inputs]. Returns ``to``."""
    if not _is_ours(x, weight, len(weight)):
        return to.addmm_(x, weight.t())
    _launch(to, x, weight, added=True)
    return to


def _is_ours(x: torch.Tensor, weight: torch.Tensor, outputs: int) -> bool:
    """Few rows, and whole tiles. In bfloat16: float16 may not hold an input that its norm's scale has not made small,
    and that is applied to the sums.
    """
    few = len(x) <= MOST_ROWS and x.dtype == torch.bfloat16
    return few and x.shape[1] % 16 == 0 and outputs % OUTPUTS == 0 and weight.is_contiguous()


def _launch(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    norm: torch.Tensor | None = None,
    epsilon: float = 0.0,
    bias: torch.Tensor | None = None,
    gated: bool = False,
    added: bool = False,
) -> None:
    (rows, inputs), outputs = x.shape, out.shape[1]
    _product_kernel[(outputs // OUTPUTS,)](
        out,
        x,
        weight,
        x if norm is None else norm,
        x if bias is None else bias,
        epsilon,
        rows,
        inputs,
        outputs,
        NORMED=norm is not None,
        BIASED=bias is not None,
        GATED=gated,
        ADDED=added,
        # The interpreter multiplies bfloat16 matrices wrongly (triton-lang/triton#11584).
        DTYPE=tl.float32 if INTERPRETED else tl.bfloat16,
        ROWS=MOST_ROWS,
        OUTPUTS=OUTPUTS,
        INPUTS=min(MOST_INPUTS, inputs & -inputs),  # the largest power of two that it is a multiple of
        num_warps=2,
        num_stages=4,
    )


@triton.jit(do_not_specialize=("rows",))
def _product_kernel(
    out,
    x,
    weight,
    norm,
    bias,
    epsilon,
    rows,
    inputs,
    outputs,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
    ADDED: tl.constexpr,
    DTYPE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    row, i = tl.arange(0, ROWS), tl.arange(0, INPUTS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    there = (row < rows)[:, None]
    x_at = x + row[:, None] * inputs + i[None, :]
    weight_at = weight + output[None, :].to(tl.int64) * inputs + i[:, None]
    second_at = weight_at + outputs.to(tl.int64) * inputs  # of a gate's other half
    norm_at = norm + i

    total = tl.zeros([ROWS, OUTPUTS], tl.float32)
    let_through = tl.zeros([ROWS, OUTPUTS], tl.float32)
    squares = tl.zeros([ROWS], tl.float32)
    for start in range(0, inputs, INPUTS):
        numbers = tl.load(x_at + start, mask=there, other=0.0)
        if NORMED:
            wide = numbers.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
        numbers = numbers.to(DTYPE)
        if NORMED:
            numbers *= tl.load(norm_at + start).to(DTYPE)[None, :]
        total = tl.dot(numbers, tl.load(weight_at + start).to(DTYPE), total)
        if GATED:
            let_through = tl.dot(numbers, tl.load(second_at + start).to(DTYPE), let_through)

    if NORMED:
        scale = tl.rsqrt(squares / inputs + epsilon)[:, None]
        total *= scale
        let_through *= scale
    if BIASED:
        total += tl.load(bias + output).to(tl.float32)[None, :]
    if GATED:
        total *= tl.sigmoid(total) * let_through
    at = out + row[:, None] * outputs + output[None, :]
    if ADDED:
        total += tl.load(at, mask=there, other=0.0).to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=there)
