"""The device that is measured: what it is, and how to time what it does."""

from __future__ import annotations

import gc
import importlib.metadata
import statistics
import subprocess
from collections.abc import Callable
from contextlib import suppress

import torch

from lab.kv.graphs import Place
from lab.limits import timed
from lab.machine import describe_machine

ROTATED_BYTES = 2**30
"""So much is read before the same again: many times what a GPU's own cache holds, and long enough for the time until
the first kernel begins not to count."""
MOST_LAYERS = 256


def describe(device: torch.device) -> dict[str, object]:
    """Name, memory, driver and versions, beside what ``describe_machine`` tells."""
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
    """Layers that read as many bytes each, so that none finds its own in the device's cache. One on a CPU."""
    return min(MOST_LAYERS, -(-ROTATED_BYTES // read)) if device.type == "cuda" else 1


def layer_seconds(over: Callable[[int], object], layers: int, device: torch.device, repeats: int) -> float:
    """Median time of a layer. All are launched at once: a short kernel would else be timed by its launch."""

    def run() -> object:
        for layer in range(layers):
            output = over(layer)
        return output

    together = Place(device).record(run)[0] if device.type == "cuda" else run
    return statistics.median(timed(together, device, repeats)) / layers


def clean_up(device: torch.device) -> None:
    """Free what is not referenced any more."""
    gc.collect()
    if device.type == "cuda":
        with suppress(RuntimeError):  # after a capture that failed: what is measured next says what is wrong
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
