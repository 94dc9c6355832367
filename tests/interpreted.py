"""Triton's interpreter, stricter and faster. Imported once, where the kernels run in it.

Stricter: a GPU runs a kernel's programs in any order and at the same time, and may not report an access beside a
tensor. The interpreter runs them one after another, in an address space where such an access mostly succeeds. So here
each load and store must lie within one of the launch's tensors, and no program may touch what another one stores.

Faster: at every call of a kernel, and of every function in one, the interpreter patches its own operations into
``triton.language``, and after a kernel it takes them out again: nearly half of its time. As the tests compile nothing
in their process, the operations stay. It also computes integers twice, to detect overflow: a third of the rest. It
would report that only in its debug mode, which is off.
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
    """Stands in for the function that patches the operations in. Returns a scope whose ``restore`` does nothing."""
    seen = {module for module in (tl, tl.core) if any(module is value for value in function.__globals__.values())}
    if not seen <= _patched:
        _patch(function)
        _patched.update(seen)
    return SimpleNamespace(restore=lambda: None)


interpreter._patch_lang = _patch_once
builder = interpreter.interpreter_builder
builder.options = replace(builder.options, sanitize_overflow=False)


class Accesses:
    """What one launch loads and stores: the addresses of numbers, each with its program."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.spans = [span(tensor) for tensor in tensors if tensor.numel()]
        self.loaded: list[tuple[int, np.ndarray]] = []
        self.stored: list[tuple[int, np.ndarray]] = []

    def note(self, program: int, pointers: np.ndarray, mask: np.ndarray, size: int, *, store: bool) -> None:
        """Record a load or store. ``size``: bytes of a number.

        Raises:
            IndexError: an address lies outside the tensors, or they lie in different tensors.
            RuntimeError: two addresses of a store are the same.
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
        """Called once all programs have run.

        Raises:
            RuntimeError: a program loaded or stored what another one stored.
        """
        if not self.stored:
            return
        stored, writer = _flat(self.stored)
        order = np.argsort(stored, kind="stable")
        stored, writer = stored[order], writer[order]
        if ((stored[1:] == stored[:-1]) & (writer[1:] != writer[:-1])).any():
            raise RuntimeError("two programs store to one place: which comes last is chance")
        # Most of what is read is not written: only reads in the range of the stores are looked up.
        loads = [(program, at[(at >= stored[0]) & (at <= stored[-1])]) for program, at in self.loaded]
        loaded, reader = _flat(loads)
        place = np.searchsorted(stored, loaded).clip(max=len(stored) - 1)
        if ((stored[place] == loaded) & (writer[place] != reader)).any():
            raise RuntimeError("a program loads what another one stores: which comes first is chance")


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The address of its first byte, and the one after its last."""
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
