"""Triton's interpreter, stricter and quicker. Imported once, where the kernels run in it.

Stricter: a GPU runs a kernel's programs in any order and at once, and says nothing where one reads what lies beside a
tensor. The interpreter runs one after another in an address space where such a read mostly finds something. So here
each load and store must lie within one of the launch's tensors, and no program may touch what another one stores.

Quicker: at every call of a kernel, and of every function in one, it puts its own operations into ``triton.language``,
and after a kernel it takes them out again: nearly half of its time. Nothing is compiled in a process of the tests: they
stay. It also computes whole numbers twice, to find a sum or product that overflows: a third of the rest. It would only
say so in its debug mode, which is off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

_patch = interpreter._patch_lang
_patched: set[ModuleType] = set()


def _patch_once(function: Callable) -> SimpleNamespace:
    """Returns what takes the operations out again, and here does not."""
    seen = {module for module in (tl, tl.core) if any(module is value for value in function.__globals__.values())}
    if not seen <= _patched:
        _patch(function)
        _patched.update(seen)
    return SimpleNamespace(restore=lambda: None)


interpreter._patch_lang = _patch_once
builder = interpreter.interpreter_builder
builder.options = replace(builder.options, sanitize_overflow=False)


class Accesses:
    """What one launch loads and stores: addresses of numbers, and the program of each."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.spans = [span(tensor) for tensor in tensors if tensor.numel()]
        self.loaded: list[tuple[int, np.ndarray]] = []
        self.stored: list[tuple[int, np.ndarray]] = []

    def note(self, program: int, pointers: np.ndarray, mask: np.ndarray, size: int, *, store: bool) -> None:
        """``size``: bytes of a number.

        Raises:
            IndexError: one of them lies outside, or they lie in different tensors.
            RuntimeError: two of a store are the same.
        """
        at = pointers[np.broadcast_to(mask, pointers.shape)].astype(np.int64)
        if not at.size:
            return
        first, last = int(at.min()), int(at.max()) + size
        if not any(begin <= first and last <= end for begin, end in self.spans):
            raise IndexError(f"{'stores' if store else 'loads'} bytes {first} to {last} of none of {self.spans}")
        if store and len(np.unique(at)) < at.size:
            raise RuntimeError("two numbers are stored to one place: which comes last is chance")
        (self.stored if store else self.loaded).append((program, at))

    def check(self) -> None:
        """Once all programs have run.

        Raises:
            RuntimeError: what one stored, another one loaded or stored.
        """
        if not self.stored:
            return
        stored, writer = _flat(self.stored)
        order = np.argsort(stored, kind="stable")
        stored, writer = stored[order], writer[order]
        if ((stored[1:] == stored[:-1]) & (writer[1:] != writer[:-1])).any():
            raise RuntimeError("two programs store to one place: which comes last is chance")
        # What is read is mostly not what is written.
        loads = [(program, at[(at >= stored[0]) & (at <= stored[-1])]) for program, at in self.loaded]
        loaded, reader = _flat(loads)
        place = np.searchsorted(stored, loaded).clip(max=len(stored) - 1)
        if ((stored[place] == loaded) & (writer[place] != reader)).any():
            raise RuntimeError("a program loads what another one stores: which comes first is chance")


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte of its memory, and the one after the last."""
    begin = tensor.data_ptr()
    furthest = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (furthest + 1) * tensor.itemsize


def _flat(accesses: list[tuple[int, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Addresses, and the program of each."""
    at = np.concatenate([at for _, at in accesses] or [np.empty(0, np.int64)])
    return at, np.repeat([program for program, _ in accesses], [at.size for _, at in accesses])


def _launch(self: interpreter.GridExecutor, *args: object, **kwargs: object) -> None:
    global _accesses
    _accesses = Accesses([arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)])
    _plain_launch(self, *args, **kwargs)
    _accesses.check()


def _program() -> int:
    (x, y, z), (_, height, depth) = builder.grid_idx, builder.grid_dim
    return (x * height + y) * depth + z


def _load(
    self: interpreter.InterpreterBuilder,
    pointers: interpreter.TensorHandle,
    mask: interpreter.TensorHandle,
    *rest: object,
    **kwargs: object,
) -> interpreter.TensorHandle:
    size = max(8, pointers.get_element_ty().primitive_bitwidth) // 8
    _accesses.note(_program(), pointers.data, mask.data, size, store=False)
    return _plain_load(self, pointers, mask, *rest, **kwargs)


def _store(
    self: interpreter.InterpreterBuilder,
    pointers: interpreter.TensorHandle,
    value: interpreter.TensorHandle,
    mask: interpreter.TensorHandle,
    *rest: object,
) -> None:
    size = max(8, pointers.get_element_ty().primitive_bitwidth) // 8
    _accesses.note(_program(), pointers.data, mask.data, size, store=True)
    _plain_store(self, pointers, value, mask, *rest)


_accesses = Accesses([])
_plain_launch = interpreter.GridExecutor.__call__
_plain_load = interpreter.InterpreterBuilder.create_masked_load
_plain_store = interpreter.InterpreterBuilder.create_masked_store
interpreter.GridExecutor.__call__ = _launch
interpreter.InterpreterBuilder.create_masked_load = _load
interpreter.InterpreterBuilder.create_masked_store = _store
