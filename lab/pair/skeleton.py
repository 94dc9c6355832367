"""A model without its weights: it takes no memory, and tells how much they would."""

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
"""Layers, or experts of a layer. A configuration comes from anybody, and its model is built, if without weights."""


def without_weights(config: PreTrainedConfig) -> PreTrainedModel:
    """The model that transformers makes of a configuration, on "meta".

    Raises:
        UnsupportedModelError: transformers makes no causal language model of it.
    """
    for name, size in config.get_text_config(decoder=True).to_dict().items():
        counts = ("layer" in name or "expert" in name) and "size" not in name
        if counts and isinstance(size, int) and size > MOST_PARTS:
            raise UnsupportedModelError(f"The configuration gives {size:,} as {name}: no model has that many.")
    try:
        # float32 is what torch's default is anyhow: transformers sets it for the whole process while it builds.
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except Exception as error:
        raise UnsupportedModelError(
            f"transformers makes no causal language model of this {config.model_type} configuration. "
            f"({in_short(error)})"
        ) from error


def parameters(model: PreTrainedModel) -> int:
    """Its parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def refuse_short_files(empty: PreTrainedModel, where: str | Path, name: str) -> None:
    """Refuse a folder whose weights cannot be all there: transformers makes up what is missing, in as much memory.

    Raises:
        ModelLoadError: a number has less than a byte in the files or, if they are quantised, less than a bit.
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
    """Refuse plain weights that alone are more than what is free on one device.

    Raises:
        ModelLoadError: with both.
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
