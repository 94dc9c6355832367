"""Triton: the matrix products of a step with few rows, which are bound by memory.

A step of one token, or of the few in a verify, does next to nothing with every weight: its time is that of reading the
matrices. What runs before and after a product in launches of its own comes on top, and so does a second launch that
torch's product may need to add up the results of several programs. Here a product includes what surrounds it: the norm
of its input, the gate of its output, the residual stream it is added to.

A program reads whole rows of the matrix, a tile at a time, and always multiplies a tile of 16 rows, the smallest that
tensor cores take, with zeros for missing ones. So a row's result does not depend on the others: with up to 16 rows, a
token gets the same bits from a verify as from a step of its own, which torch's product does not promise.

An H200 reads the matrices of a Llama 8B at 3.4 to 4.0 TB/s so, where torch's products without what surrounds them read
at 2.5 to 3.7 and a large copy moves 4.2 (part 3 of ``python -m lab.bench gpu``). Memory gives each multiprocessor 18
bytes a clock: if tensor cores can read x only eight times more slowly, because something else needs another layout of
it, that costs more than all the memory traffic; this is why the norm's squares are a product too.
"""

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from lab.backends.gpu.fused_kernels import rms_norm, swiglu
from lab.backends.gpu.launching import early, fetch, let_next_begin, multiplied_in, wait_for_previous

MOST_ROWS = 16


class Tile(NamedTuple):
    """Tile of the matrix: outputs (with a gate, twice as many rows), at most so many inputs, warps of a program, and
    stages: tiles on their way and being multiplied."""

    outputs: int
    inputs: int
    warps: int
    stages: int


# Of the tiles that fit in the shared memory of smaller GPUs, 99 KB, those with which a step of a Llama 8B took an H200
# least time, with one row and with 3 to 16. Enough has to be on its way: with two tiles of ADDED, a step took 4.23 ms
# instead of 4.08 with three. Half as many outputs need x twice as often: with 16 of GATED, a layer took 2% longer.
# Where x is normed, a second warp computes the same squares again.
NORMED, GATED, ADDED = Tile(16, 128, 1, 8), Tile(32, 128, 2, 5), Tile(16, 512, 2, 4)
ADDED_ALONE = Tile(16, 512, 2, 5)
"""For programs that have a multiprocessor each, of GPUs where one may have so much of its shared memory: a step of a
Llama 1B took 1.00 ms instead of 1.03."""
FETCHED = 512
"""Inputs whose weights a program asks for while the kernel ahead still runs; on an H200 none cost up to 0.6% of a step,
and 2,048 up to 3%."""


def normed_product(
    x: torch.Tensor, norm: torch.Tensor, epsilon: float, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """``rms_norm(x) weight^T + bias``: [N, inputs], [inputs], [outputs, inputs], [outputs] -> [N, outputs].

    ``epsilon``: see ``rms_norm``. Here and below, the rows of ``x`` are contiguous.
    """
    if not _is_ours(x, weight, len(weight), NORMED):
        return F.linear(rms_norm(x, norm, epsilon), weight, bias)
    out = x.new_empty(len(x), len(weight))
    _launch(NORMED, out, x, weight, norm=norm, epsilon=epsilon, bias=bias)
    return out


def gated_product(x: torch.Tensor, norm: torch.Tensor, epsilon: float, weight: torch.Tensor) -> torch.Tensor:
    """``swiglu(rms_norm(x) weight^T)``: [N, inputs], [inputs], [2 * outputs, inputs] -> [N, outputs]."""
    if not _is_ours(x, weight, len(weight) // 2, GATED):
        return swiglu(F.linear(rms_norm(x, norm, epsilon), weight))
    out = x.new_empty(len(x), len(weight) // 2)
    _launch(GATED, out, x, weight, norm=norm, epsilon=epsilon, gated=True)
    return out


def add_product(to: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``to += x weight^T``, rounded once: [N, outputs], [N, inputs], [outputs, inputs]. Returns ``to``.

    The rows of ``to`` are contiguous, and it is not ``x``.
    """
    if not _is_ours(x, weight, len(weight), ADDED):
        return to.addmm_(x, weight.t())
    alone = _each_has_a_multiprocessor(len(weight) // ADDED.outputs, x.device)
    _launch(ADDED_ALONE if alone else ADDED, to, x, weight, added=True)
    return to


def _is_ours(x: torch.Tensor, weight: torch.Tensor, outputs: int, tile: Tile) -> bool:
    """Return whether the kernel computes a product: few rows, whole tiles, and bfloat16.

    float16 may not hold an input that is not scaled down by its norm yet, since that scale is applied to the sums.
    """
    few = len(x) <= MOST_ROWS and x.dtype == torch.bfloat16
    return few and x.shape[1] % 16 == 0 and outputs % tile.outputs == 0 and weight.is_contiguous()


@functools.cache
def _each_has_a_multiprocessor(programs: int, device: torch.device) -> bool:
    """Return whether each of so many programs has a multiprocessor, and may use more than half of its shared memory."""
    if device.type != "cuda":
        return False
    properties = torch.cuda.get_device_properties(device)
    enough = getattr(properties, "shared_memory_per_block_optin", 0) >= 128 * 1024  # ROCm's has no such attribute
    return enough and programs <= properties.multi_processor_count


def _launch(
    tile: Tile,
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
    _product_kernel[(outputs // tile.outputs,)](
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
        DTYPE=multiplied_in(x.dtype),
        ROWS=MOST_ROWS,
        OUTPUTS=tile.outputs,
        INPUTS=min(tile.inputs, inputs & -inputs),  # the largest power of two that divides them
        FETCHED=min(FETCHED, inputs & -inputs),
        **early(x.device),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


@triton.jit(do_not_specialize_on_alignment=("rows",))
def _product_kernel(
    out,  # [rows, outputs] bfloat16 and contiguous, as are those below
    x,  # [rows, inputs]
    weight,  # [outputs, inputs]; with a gate [2 * outputs, inputs], those of the gates first
    norm,  # [inputs]; not read if nothing is normed
    bias,  # [outputs]; not read if there is none
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
    FETCHED: tl.constexpr,
    EARLY: tl.constexpr,
):
    row, i = tl.arange(0, ROWS), tl.arange(0, INPUTS)
    there = (row < rows)[:, None]
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    COLUMNS: tl.constexpr = OUTPUTS * (1 + GATED)
    if GATED:  # the rows of the gates, and those of what they gate
        column = tl.arange(0, COLUMNS)
        matrix_row = tl.program_id(0) * OUTPUTS + column % OUTPUTS + column // OUTPUTS * outputs
    else:
        matrix_row = output
    x_at = x + row[:, None] * inputs + i[None, :]
    weight_at = weight + matrix_row[None, :].to(tl.int64) * inputs + i[:, None]
    at = out + row[:, None] * outputs + output[None, :]
    let_next_begin(EARLY)
    line = tl.arange(0, (FETCHED + 63) // 64) * 64
    fetch(weight + matrix_row[:, None].to(tl.int64) * inputs + line[None, :], EARLY)
    wait_for_previous(EARLY)
    # What is added in the end is on its way while the matrix is read. Converted only then: that waits for its arrival.
    if ADDED:
        before = tl.load(at, mask=there, other=0.0)
    if BIASED:
        constant = tl.load(bias + output)

    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    squares = tl.zeros([ROWS, ROWS], tl.float32)  # each row's sum is on the diagonal
    for start in range(0, inputs, INPUTS):
        numbers = tl.load(x_at + start, mask=there, other=0.0).to(DTYPE)
        if NORMED:
            squares = tl.dot(numbers, tl.trans(numbers), squares)
            numbers *= tl.load(norm + start + i).to(DTYPE)[None, :]
        total = tl.dot(numbers, tl.load(weight_at + start).to(DTYPE), total)

    if NORMED:
        own = tl.sum(tl.where(row[:, None] == row[None, :], squares, 0.0), 1)
        total *= tl.rsqrt(own / inputs + epsilon)[:, None]
    if BIASED:
        total += constant.to(tl.float32)[None, :]
    if GATED:
        gate, let_through = tl.split(tl.permute(tl.reshape(total, [ROWS, 2, OUTPUTS]), [0, 2, 1]))
        total = gate * tl.sigmoid(gate) * let_through
    if ADDED:
        total += before.to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=there)
