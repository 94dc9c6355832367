"""GPUs, weight formats and models by name. Needs no torch, so that a command line lists them at once."""

import json
import math
from pathlib import Path
from typing import Literal

from lab.errors import ConfigError

GiB = 2**30
MAX_GIB = 2**20

WeightFormat = Literal["float32", "bfloat16", "int8", "int4"]
WEIGHT_BITS: dict[WeightFormat, int] = {"float32": 32, "bfloat16": 16, "int8": 8, "int4": 4}
"""Bits per parameter of the layers. The embedding table and the head stay in ``TABLE_BITS`` at least: AWQ, GPTQ and
most other methods quantise neither. Scales, a few percent more, differ by method and are left out."""
TABLE_BITS = 16

GPUS = {
    "T4": 16,
    "L4": 24,
    "RTX 3090": 24,
    "RTX 4090": 24,
    "RTX 5090": 32,
    "A100 40 GB": 40,
    "L40S": 48,
    "A100 80 GB": 80,
    "H100 80 GB": 80,
    "H200": 141,
    "MI300X": 192,
}
"""Memory in the vendor's "GB", which for GPUs is 2^30 bytes. Drivers report up to 6% less: error correction takes
some on cards with GDDR memory."""
GPU_KEYS = {name.lower().replace(" ", "-"): name for name in GPUS}
"""Their names by those used in links and on command lines, such as "h100-80-gb"."""

PUBLISHED: dict[str, dict] = json.loads((Path(__file__).parent / "models.json").read_text("utf-8"))
"""Well-known models: those numbers of their published config.json (or of what ``read`` names) that determine bytes,
their parameters as transformers counts them (tied embeddings once, heads for speculation and towers for images left
out), and the bytes of a recurrent state in float32. A test counts both again."""
OWN = {"stories-target": "stories", "stories-draft": "stories, the draft"}
"""The lab's own pair: titles by names."""
MODELS = (*PUBLISHED, *OWN)


def device_bytes(gpu: str, memory: float | None = None) -> int:
    """Memory of a device in ``GPU_KEYS``, or of one with ``memory`` GiB if that is given. Raises ConfigError for
    another.
    """
    if memory is None:
        if gpu not in GPU_KEYS:
            raise ConfigError(
                f"gpu must be one of {', '.join(GPU_KEYS)}, not {gpu!r}; for another, give its GiB as memory."
            )
        return GPUS[GPU_KEYS[gpu]] * GiB
    if not isinstance(memory, int | float) or isinstance(memory, bool) or not 0 < memory <= MAX_GIB:
        raise ConfigError(f"memory must be a device's GiB, above 0 and at most {MAX_GIB:,}, not {memory!r}.")
    return math.ceil(memory * GiB)
