"""Waiting for a compiler: it works in a thread of its own, so that whoever waits can say so, and stop waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import wait
from typing import Protocol

from lab.aside import LOOK, aside
from lab.config import EngineConfig


class Compiles(Protocol):
    """What is needed of an engine here."""

    def models(self, config: EngineConfig) -> object: ...


def compiling(engine: Compiles, configs: Iterable[EngineConfig], cancelled: threading.Event) -> Iterator[str]:
    """A status at every look, until the layers are compiled that some of ``configs`` ask for. Once they are, none.

    Setting ``cancelled`` ends the waiting; the compiler goes on, for the next who asks. Raises what it raises.
    """
    wanted = next((config for config in configs if config.torch_compile), None)
    if wanted is None:
        return
    began = time.monotonic()
    compiler = aside(lambda: engine.models(wanted), "decode-lab-compiler")
    while not wait([compiler], LOOK).done and not cancelled.is_set():
        yield f"Compiling the layers: {time.monotonic() - began:.0f} s so far …"
    if compiler.done():
        compiler.result()
