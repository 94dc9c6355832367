"""Free memory is returned to the operating system."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from visualize import malloc_trim as allocator
from visualize import server as serving
from visualize.malloc_trim import _glibc

IN_PIECES = """
import psutil
from visualize.malloc_trim import give_back, share_arenas

def resident():
    return psutil.Process().memory_info().rss / 1e6

share_arenas()
pieces = [bytearray(100_000) for _ in range(1000)]
used = resident()
pieces = pieces[999:]  # the last holds all the others
free = resident()
give_back()
print(used, free, resident())
"""


@pytest.mark.skipif(not _glibc("malloc_trim"), reason="there is no glibc here")
def test_free_memory_between_pieces_in_use_is_returned() -> None:
    used, free, left = map(float, subprocess.check_output([sys.executable, "-c", IN_PIECES]).split())
    assert free > used - 10  # freeing alone keeps the memory in the process
    assert left < used - 90


def test_without_glibc_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, or with musl."""
    assert _glibc("no_such_call_in_any_library") is None
    monkeypatch.setattr(allocator, "_glibc", lambda name: None)
    allocator.share_arenas()
    allocator.give_back()


def test_an_idle_server_returns_memory_and_a_busy_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, seen = threading.Event(), []

    class Line:
        """The first look finds a visitor inside, the others none; once memory was returned, Ctrl-C is pressed."""

        _looks = iter([1, 0, 0, 0])

        @property
        def inside(self) -> int:
            seen.append(now := next(self._looks))
            if "given back" in seen[:-1]:
                asked.set()
            return now

    def given_back() -> None:
        seen.append("given back")
        if seen[1:] == seen[:-1]:  # nothing but this call: the line was never looked at
            asked.set()

    monkeypatch.setattr(serving, "give_back", given_back)
    monkeypatch.setattr(serving, "REST", 2)
    serving._wait_for_a_signal(asked, Line())
    assert seen == [1, 0, 0, "given back", 0]
