"""Triton's interpreter: whether kernels run in it, and the dtypes that differ there."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl


@triton.jit
def _kernel():
    pass


INTERPRETED = not isinstance(_kernel, triton.JITFunction)
"""Whether TRITON_INTERPRET=1 was set when this file was imported: the kernels then run in Python, on CPU tensors."""


@functools.cache
def multiplied_in(dtype: torch.dtype) -> tl.dtype:
    """Dtype in which a kernel multiplies matrices of ``dtype``: the same, but the interpreter multiplies bfloat16
    wrongly (triton-lang/triton#11584)."""
    if INTERPRETED and dtype == torch.bfloat16:
        return tl.float32
    return getattr(tl, str(dtype).removeprefix("torch."))
