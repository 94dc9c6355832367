"""Waiting for a compiler: it works in a thread of its own, so that whoever waits can say so, and stop waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Protocol

from lab.config import EngineConfig

LOOK = 0.1
"""Seconds between looks."""


class Compiles(Protocol):
    """What is needed of an engine here."""

    def models(self, config: EngineConfig) -> object: ...


def compiling(engine: Compiles, configs: Iterable[EngineConfig], cancelled: threading.Event) -> Iterator[str]:
    """A status at every look, until the layers are compiled that some of ``configs`` ask for. Once they are, none.

    Setting ``cancelled`` ends the waiting; the compiler goes on, for the next who asks.
    """
    wanted = next((config for config in configs if config.torch_compile), None)
    if wanted is None:
        return
    began = time.monotonic()
    compiler = threading.Thread(target=engine.models, args=(wanted,), name="decode-lab-compiler", daemon=True)
    compiler.start()
    compiler.join(LOOK)
    while compiler.is_alive() and not cancelled.is_set():
        yield f"Compiling the layers: {time.monotonic() - began:.0f} s so far …"
        compiler.join(LOOK)
