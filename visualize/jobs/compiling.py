"""Waiting for a compiler, which works in a thread of its own so that the waiting can be reported and cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import wait
from typing import Protocol

from lab.config import EngineConfig
from lab.util.background import POLL_SECONDS, in_background


class Compiles(Protocol):
    """The part of an engine that is needed here."""

    def models(self, config: EngineConfig) -> object: ...


def compiling(engine: Compiles, configs: Iterable[EngineConfig], cancelled: threading.Event) -> Iterator[str]:
    """A status at every poll until the layers are compiled; none if no config asks for that, or once they are.

    Setting ``cancelled`` ends the waiting; the compiler goes on, for the next request. Raises what it raises.
    """
    wanted = next((config for config in configs if config.torch_compile), None)
    if wanted is None:
        return
    began = time.monotonic()
    compiler = in_background(lambda: engine.models(wanted), "decode-lab-compiler")
    while not wait([compiler], POLL_SECONDS).done and not cancelled.is_set():
        yield f"Compiling the layers: {time.monotonic() - began:.0f} s so far …"
    if compiler.done():
        compiler.result()
