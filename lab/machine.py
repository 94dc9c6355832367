"""What something was measured or trained on: figures mean nothing without it."""

from __future__ import annotations

import os
import platform
from datetime import date
from pathlib import Path

import torch
import transformers


def describe_machine(device: str) -> dict[str, str | int]:
    """Processor, accelerator, versions and threads of this process."""
    machine: dict[str, str | int] = {
        "date": date.today().isoformat(),
        "processor": processor_name(),
        "torch_threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": device,
    }
    if device.startswith("cuda"):
        machine["accelerator"] = torch.cuda.get_device_name(device)
        machine["cuda"] = torch.version.cuda or ""
    return machine


def hardware(device: str) -> str:
    """In a few words: the accelerator, or how many cores of which processor torch may use, of how many."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    used, there = torch.get_num_threads(), max(torch.get_num_threads(), os.cpu_count() or 1)
    of = f"{used} of {there}" if used < there else str(there)
    return f"{of} CPU core{'s' * (there > 1)} ({processor_name()})"


def processor_name() -> str:
    """The model name the system gives, or the bare architecture."""
    return _told("model name") or platform.processor() or platform.machine()


def instructions() -> str:
    """What the processor can do, as the system lists it: two of one name may differ. "": it lists nothing."""
    return _told("flags") or _told("Features")


def _told(field: str) -> str:
    """What Linux says first about the processor under this name; "" if it says nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field) and ":" in line), "")
