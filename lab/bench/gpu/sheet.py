"""Shared by all parts: the device, a clock for what it does, and the results."""

import gc
import importlib.metadata
import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch

from lab.backends.gpu.cuda_graphs import CaptureStream
from lab.engine.device_limits import timed
from lab.util.machine_info import describe_machine


@dataclass
class Sheet:
    """A part's results. ``failures``, in ``result``: what could not be measured, and why. ``say``: reports a line."""

    result: dict = field(default_factory=dict)
    say: Callable[[str], None] = lambda line: None

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Measure ``what``. If it fails, ``failures`` says so, and the part goes on."""
        try:
            yield
        except Exception as error:
            self.result.setdefault("failures", {})[what] = self.failed(what, error)

    def failed(self, what: str, error: Exception) -> str:
        """Report an error. Returns it in words."""
        described = f"{type(error).__name__}: {error}"
        self.say(f"  {what} failed: {described[:300]}")
        return described


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
