"""Triton's interpreter, quicker. Imported once, where the kernels run in it.

At every call of a kernel, and of every function in one, it puts its own operations into ``triton.language``, and after
a kernel it takes them out again: nearly half of its time. Nothing is compiled in a process of the tests: they stay.

It also computes whole numbers twice, to find a sum or product that overflows: a third of the rest. It would only say so
in its debug mode, which is off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace

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
