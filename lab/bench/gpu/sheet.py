"""Shared by all parts: the device, a clock for what it does, and the results, written to a file as they come."""

import gc
import importlib.metadata
import json
import math
import statistics
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lab.backends.gpu.cuda_graphs import CaptureStream
from lab.engine.device_limits import timed
from lab.util.machine_info import describe_machine
from lab.util.stdio import Output


@dataclass
class Sheet:
    """A part's results, written to disk as they are added.

    Attributes:
        path: the file, JSON. None: results are kept in memory only.
        until: when the part will be stopped, in seconds as ``time.time`` counts them.
        entry: all that is known about the part. ``done``: it finished; ``failure``, ``traceback``: what ended it.
        result: what it measured, part of the entry. ``failures``: what could not be measured, and why;
            ``left_out``: what there was no time for.
    """

    path: Path | None = None
    until: float = math.inf
    result: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.entry = {"result": self.result}

    @property
    def seconds_left(self) -> float:
        return self.until - time.time()

    def keep(self) -> None:
        """Write everything to the file, which is complete at any moment."""
        if self.path:
            new = self.path.with_name(f"{self.path.name}.new")
            new.write_text(json.dumps(self.entry, default=str), "utf-8")
            new.replace(self.path)

    def say(self, line: str) -> None:
        """Print a line for whoever watches, and write what is known."""
        Output().say(line)
        self.keep()

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Measure ``what``, and write it. If it fails, ``failures`` says so, and the part goes on."""
        try:
            yield
        except Exception as error:
            self.result.setdefault("failures", {})[what] = _described(error)
            self.say(f"  {what} failed: {_described(error)[:300]}")
        self.keep()

    def has_time(self, seconds: float, what: str) -> bool:
        """True if so many seconds are left; else add ``what`` to ``left_out``."""
        if self.seconds_left >= seconds:
            return True
        self.result.setdefault("left_out", []).append(f"{what} ({max(self.seconds_left, 0):.0f} s were left)")
        self.keep()
        return False

    def fail(self, error: Exception) -> None:
        """Record the error that ends the whole part."""
        self.entry |= {"failure": _described(error), "traceback": "".join(traceback.format_exception(error))}
        self.say(f"  failed: {_described(error)[:300]}")


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


ROTATED_BYTES = 2**30
"""Bytes read before any is read again: many times what a GPU's own cache holds, and enough to make the time until the
first kernel begins negligible."""
MOST_LAYERS = 256


def describe(device: torch.device) -> dict[str, object]:
    """Name, memory, driver and versions, in addition to what ``describe_machine`` says."""
    found: dict[str, object] = describe_machine(str(device))
    try:
        found["triton"] = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        found["triton"] = "none"
    if device.type == "cuda":
        found["memory_bytes"] = torch.cuda.get_device_properties(device).total_memory
        found["driver"] = _driver()
    return found


def _driver() -> str:
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout.split("\n")[0]
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({error})"


def layers_to_rotate(read: int, device: torch.device) -> int:
    """Number of layers, reading ``read`` bytes each, so that none finds its data in the device's cache; 1 on a CPU."""
    return min(MOST_LAYERS, -(-ROTATED_BYTES // read)) if device.type == "cuda" else 1


def layer_seconds(over: Callable[[int], object], layers: int, device: torch.device, repeats: int) -> float:
    """Median time of a layer. All are launched together: otherwise a short kernel's time would be its launch's."""

    def run() -> object:
        for layer in range(layers):
            output = over(layer)
        return output

    together = CaptureStream(device).record(run)[0] if device.type == "cuda" else run
    return statistics.median(timed(together, device, repeats)) / layers


def clean_up(device: torch.device) -> None:
    """Free memory that nothing refers to."""
    gc.collect()
    if device.type == "cuda":
        with suppress(RuntimeError):  # after a failed capture; the next measurement reports what is wrong
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
