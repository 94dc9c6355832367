"""Hardware and versions that a figure was measured with, or a model trained on."""

import os
import platform
from datetime import date
from pathlib import Path

import torch
import transformers


def describe_machine(device: str) -> dict[str, str | int]:
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
    """The hardware in a few words: the accelerator, or the processor and how many of its cores torch may use."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    used, there = torch.get_num_threads(), max(torch.get_num_threads(), os.cpu_count() or 1)
    of = f"{used} of {there}" if used < there else str(there)
    return f"{of} CPU core{'s' * (there > 1)} ({processor_name()})"


def processor_name() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def instructions() -> str:
    """The processor's features as the system lists them: two of one name may differ. "": it lists nothing."""
    return _cpuinfo("flags") or _cpuinfo("Features")


def _cpuinfo(field: str) -> str:
    """The first value that Linux gives for this field of the processor; "" if it gives none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(field) and ":" in line), "")
