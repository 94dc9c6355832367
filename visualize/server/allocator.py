"""The C library's allocator, told to give back what a crowd has used. Left alone, the process would seem to grow: what
is free lies in pieces between what is not. Nothing is done without glibc: other C libraries have no such calls.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

M_ARENA_MAX = -8
"""glibc's number (malloc.h) for how many arenas memory is taken from."""
REST = 10
"""Seconds without anything under way, after which a server gives back what is free."""


def share_arenas() -> None:
    """Two for all threads. Left alone, glibc gives threads up to eight a core, and keeps what is free in each."""
    if mallopt := _glibc("mallopt"):
        mallopt(M_ARENA_MAX, 2)


def give_back() -> None:
    """What is free, to the system: 2 ms after a crowd, a tenth of one where there is nothing to give."""
    if malloc_trim := _glibc("malloc_trim"):
        malloc_trim(0)


def _glibc(name: str) -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
