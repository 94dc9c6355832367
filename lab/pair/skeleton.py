"""A model without its weights: it takes no memory, and says how much they would take."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lab.config import UnsupportedModelError, in_short
from lab.pair.devices import DeviceMap
from lab.pair.folder import ModelLoadError, refuse_pointers, weight_files
from lab.pair.memory import free_bytes
from lab.pair.quantization import how_quantised

MOST_PARTS = 1000
"""Most layers, or experts of a layer: a configuration may come from anybody, and a model is built from it."""


def without_weights(config: PreTrainedConfig) -> PreTrainedModel:
    """The model that transformers builds from a configuration, on "meta".

    Raises:
        UnsupportedModelError: transformers builds no causal language model from it, or it has too many parts.
    """
    for name, size in config.get_text_config(decoder=True).to_dict().items():
        counts = ("layer" in name or "expert" in name) and "size" not in name
        if counts and isinstance(size, int) and size > MOST_PARTS:
            raise UnsupportedModelError(f"The configuration gives {size:,} as {name}: no model has that many.")
    try:
        # transformers sets torch's default dtype, process-wide, while it builds: float32 leaves it as it is.
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:
        raise UnsupportedModelError(
            f"transformers makes no causal language model of this {config.model_type} configuration. "
            f"({in_short(error)})"
        ) from error


def parameters(model: PreTrainedModel) -> int:
    """Number of its parameters; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def refuse_short_files(empty: PreTrainedModel, where: str | Path, name: str) -> None:
    """Refuse a folder whose weights cannot be complete: transformers makes up missing ones, which take memory too.

    Raises:
        ModelLoadError: the files hold less than a byte per parameter or, if quantised, less than a bit.
    """
    files = weight_files(where)
    stored, numbers = sum(path.stat().st_size for path in files), parameters(empty)
    if not files or numbers <= stored * (8 if how_quantised(empty.config) else 1):
        return
    refuse_pointers(files, name)
    raise ModelLoadError(
        f"{name} could not be loaded: its config.json describes a model of {numbers:,} parameters, and its weights "
        f"are {stored:,} bytes, too few for that. Its files are incomplete, or one of them is another model's: fetch "
        "them again."
    )


def refuse_misfit(empty: PreTrainedModel, name: str, place: str | DeviceMap, dtype: torch.dtype) -> None:
    """Refuse unquantised weights that alone exceed the free memory of one device.

    Raises:
        ModelLoadError: gives both sizes.
    """
    if not isinstance(place, str) or place == "auto" or how_quantised(empty.config):
        return
    needed, free = parameters(empty) * dtype.itemsize, free_bytes(torch.device(place))
    if needed > free:
        raise ModelLoadError(
            f"{name} could not be loaded: its weights take {needed / 1e9:.1f} GB of memory on {place} in "
            f"{str(dtype).removeprefix('torch.')}, and {free / 1e9:.1f} GB are free there. Choose a smaller model or "
            "dtype."
        )
