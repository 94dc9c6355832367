"""The tests' interpreter refuses data races and accesses to memory of other tensors, which a GPU would let pass."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

import triton
import triton.language as tl

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the kernels here")


@triton.jit
def _copy(out, x, count, step, SIZE: tl.constexpr):
    """Each program copies up to SIZE numbers, starting ``step`` numbers after the previous program's."""
    i = tl.program_id(0) * step + tl.arange(0, SIZE)
    tl.store(out + i, tl.load(x + i, mask=i < count, other=0), mask=i < count)


@triton.jit
def _scatter(out, slots, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out + tl.load(slots + i), i)


@triton.jit
def _shift(x):
    i = tl.program_id(0)
    tl.store(x + i, tl.load(x + i + 1))


@pytest.mark.parametrize("shorter", ["x", "out"])
def test_memory_beside_a_tensor_is_neither_read_nor_written(shorter):
    """Not even where it belongs to another tensor, and so could be read. Programs may share a tensor."""
    x, out = torch.arange(11), torch.zeros(11, dtype=torch.int64)
    _copy[3,](out, x, 11, 4, SIZE=4)
    _copy[3,](x[1:10], x[1:10], 9, 4, SIZE=4)  # in place: each program its own part
    assert torch.equal(out, x)
    tensors = {"out": torch.zeros(16), "x": torch.zeros(16)}
    tensors[shorter] = torch.zeros(16)[:11]
    with pytest.raises(triton.runtime.errors.InterpreterError, match=r"IndexError.*of none of"):
        _copy[3,](tensors["out"], tensors["x"], 12, 4, SIZE=4)


def test_two_numbers_must_not_be_stored_to_one_place_nor_loaded_from_where_another_program_stores():
    with pytest.raises(RuntimeError, match="two programs store"):
        _copy[3,](torch.zeros(11), torch.zeros(11), 11, 3, SIZE=4)
    slots = torch.tensor([3, 1, 0, 2])
    _scatter[1,](out := torch.zeros(4, dtype=torch.int32), slots, SIZE=4)
    assert out.tolist() == [2, 1, 3, 0]
    slots[3] = 1
    with pytest.raises(triton.runtime.errors.InterpreterError, match="two numbers are stored"):
        _scatter[1,](out, slots, SIZE=4)
    with pytest.raises(RuntimeError, match="loads what another one stores"):
        _shift[3,](torch.zeros(4))
