"""How serving begins and ends: what is said where it cannot, and memory that is returned meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from visualize import malloc_trim, server
from visualize.options import read_options

IN_PIECES = """
import psutil
from visualize.malloc_trim import limit_arenas, trim

def resident():
    return psutil.Process().memory_info().rss / 1e6

limit_arenas()
pieces = [bytearray(100_000) for _ in range(1000)]
used = resident()
pieces = pieces[999:]  # the last holds all the others
free = resident()
trim()
print(used, free, resident())
"""


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Serves pages, launched by the given function, until the server has looked at its queue a few times."""
    monkeypatch.setattr(server.signal, "signal", lambda *_: None)

    def begin(launch: Callable[..., None] = lambda **_: None, inside: list[int] | None = None) -> None:
        asked = threading.Event()
        monkeypatch.setattr(server.threading, "Event", lambda: asked)
        monkeypatch.setattr(asked, "wait", lambda _: asked.is_set())
        looks = inside or [0]

        class Queue:
            @property
            def inside(self) -> int:
                if len(looks) == 1:
                    asked.set()
                return looks.pop(0)

            def close(self, patience: float) -> None:
                pass

        def close(verbose: bool = True) -> None:
            if verbose:
                print("Closing server")

        pages = SimpleNamespace(queue=lambda **_: None, launch=launch, close=close)
        pages.local_url, pages.share_url = "http://127.0.0.1:7860/", None
        server.serve(pages, read_options([], {}), Queue(), {}, names=(), routes=(), announcement=str.upper)

    return begin


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("Cannot find empty port in range: 7860-7860."), "cannot listen on 127.0.0.1, port 7860: another"),
        (OSError(28, "No space left on device"), "the server cannot start: No space left on device.\n"),
    ],
)
def test_only_a_port_that_is_taken_is_called_taken(begin, capsys, error: OSError, said: str) -> None:
    def launch(**_: object) -> None:
        raise error

    with pytest.raises(SystemExit) as end:
        begin(launch)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"app.py: {said}")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_pages_are_served_though_their_address_cannot_be_printed(begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the output goes to a log on a full disk, or to a program that has ended."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        begin()


def test_nothing_is_printed_at_the_end(begin, capsys) -> None:
    """What read the output may be gone by then, and the status would say that the server failed."""
    begin()
    assert capsys.readouterr().out == "Decode Lab is at http://127.0.0.1:7860\nHTTP://127.0.0.1:7860/\n"


def test_an_idle_server_returns_memory_and_a_busy_one_does_not(begin, monkeypatch: pytest.MonkeyPatch) -> None:
    returned: list[int] = []
    monkeypatch.setattr(server, "trim", lambda: returned.append(len(looks)))
    monkeypatch.setattr(server, "IDLE_S", 2)
    looks = [1, 0, 0, 1, 0, 0]
    begin(inside=looks)
    assert returned == [3, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="a call of glibc's")
def test_free_memory_between_pieces_in_use_is_returned() -> None:
    used, free, left = map(float, subprocess.check_output([sys.executable, "-c", IN_PIECES]).split())
    assert free > used - 10  # freeing alone keeps the memory in the process
    assert left < used - 90


def test_without_glibc_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, or with musl."""
    monkeypatch.setattr(malloc_trim.sys, "platform", "darwin")
    malloc_trim.limit_arenas()
    malloc_trim.trim()
