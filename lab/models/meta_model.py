"""A model without its weights, which takes no memory and shows how much they would take."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lab.errors import UnsupportedModelError
from lab.models.checkpoint_files import ModelLoadError, refuse_pointers, weight_files
from lab.models.devices import DeviceMap
from lab.models.quantization import quantization_method
from lab.util.device_memory import free_bytes
from lab.util.messages import error_summary

MAX_TORCH_CALLS = 30_000
"""Most calls of torch to build a model: a configuration may come from anybody. Those of 126 layers, or of 61 with 256
experts each, need some 3,000."""


class _Bounded(TorchFunctionMode):
    """Ends the building of a model that has no end: in this thread only."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: tuple = (), named: dict[str, Any] | None = None
    ) -> Any:
        self._calls += 1
        if self._calls > MAX_TORCH_CALLS:
            raise UnsupportedModelError(
                f"The configuration describes a model that takes more than {MAX_TORCH_CALLS:,} steps to build: no "
                "model has that many parts."
            )
        return function(*arguments, **named or {})


def without_weights(config: PreTrainedConfig) -> PreTrainedModel:
    """The model that transformers builds from a configuration, on "meta", with parameters of torch's default dtype.

    Raises:
        UnsupportedModelError: transformers builds no causal language model from it, or it has too many parts.
    """
    try:
        # Given a dtype, transformers would make it torch's default while it builds, in all threads: a model that is
        # loaded meanwhile, in another dtype, would leave the wrong one behind. It changes the configuration's dtype,
        # which says what the weights are stored in: so it gets a copy.
        with torch.device("meta"), _Bounded():
            return AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=None, trust_remote_code=False)
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"transformers makes no causal language model of this {config.model_type} configuration. "
            f"({error_summary(error)})"
        ) from error


def parameters(model: PreTrainedModel) -> int:
    """Number of its parameters; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def refuse_short_files(empty: PreTrainedModel, where: str | Path, name: str) -> None:
    """Raises ModelLoadError for a folder whose weights cannot be complete, with less than a byte per parameter or, if
    quantised, less than a bit: transformers makes up missing ones, which take memory too."""
    files = weight_files(where)
    stored, numbers = sum(path.stat().st_size for path in files), parameters(empty)
    if not files or numbers <= stored * (8 if quantization_method(empty.config) else 1):
        return
    refuse_pointers(files, name)
    raise ModelLoadError(
        f"{name} could not be loaded: its config.json describes a model of {numbers:,} parameters, and its weights "
        f"are {stored:,} bytes, too few for that. Its files are incomplete, or one of them is another model's: fetch "
        "them again."
    )


def weight_bytes(parameters: int, dtype: torch.dtype, packed: int) -> int:
    """Bytes that a model's weights take in ``dtype``; of float32, a step in C copies ``packed`` into bfloat16."""
    return parameters * dtype.itemsize + (packed * torch.bfloat16.itemsize if dtype == torch.float32 else 0)


def refuse_misfit(
    empty: PreTrainedModel, name: str, place: str | DeviceMap, dtype: torch.dtype, packed: int = 0
) -> None:
    """Raises ModelLoadError for unquantised weights that alone exceed the free memory of one device. ``packed``: see
    ``weight_bytes``."""
    if not isinstance(place, str) or place == "auto" or quantization_method(empty.config):
        return
    needed, free = weight_bytes(parameters(empty), dtype, packed), free_bytes(torch.device(place))
    if needed > free:
        copied = " with the copy in bfloat16 for the step in C" if packed and dtype == torch.float32 else ""
        raise ModelLoadError(
            f"{name} could not be loaded: its weights take {needed / 1e9:.1f} GB of memory on {place} in "
            f"{str(dtype).removeprefix('torch.')}{copied}, and {free / 1e9:.1f} GB are free there. Choose a smaller "
            "model or dtype."
        )
