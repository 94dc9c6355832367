"""Weights in INT8, through the libraries that transformers supports. Both are optional."""

from typing import Literal, get_args

import torch
from transformers import BitsAndBytesConfig, PreTrainedConfig, TorchAoConfig
from transformers.utils.quantization_config import QuantizationConfigMixin

from lab.errors import ConfigError

Quantization = Literal["torchao-int8", "bitsandbytes-int8"]
"""How linear layers store their weights; the embedding table, the head and the norms stay as they are.

"torchao-int8": one byte per number and a scale per output row in the compute dtype; activations are not
quantised. "bitsandbytes-int8": LLM.int8() (Dettmers et al., 2208.07339): one byte per number and a float32 scale
per output row; activations are quantised too, per token, except for outliers.
"""


def resolve_quantization(choice: str | None, dtype: str, kind: str) -> tuple[QuantizationConfigMixin | None, str]:
    """The configuration for transformers, and the dtype's name: bitsandbytes computes in float16, so "auto" is that.

    Args:
        kind: of the device, such as "cuda".

    Raises:
        ConfigError: no such choice, a dtype that does not go with it, or its library is not installed or does not
            support the device.
    """
    if choice is None:
        return None, dtype
    if choice not in get_args(Quantization):
        raise ConfigError(
            f"quantization must be {', '.join(map(repr, get_args(Quantization)))} or None, not {choice!r}."
        )
    if choice == "bitsandbytes-int8" and dtype not in ("auto", "float16"):
        raise ConfigError(
            f"quantization={choice!r} computes in float16, but dtype={dtype!r} asks for another. Set dtype='float16' "
            "or 'auto', or quantization='torchao-int8'."
        )
    try:
        if choice == "torchao-int8":
            from torchao.quantization import Int8WeightOnlyConfig

            # torch.compile's settings are those of the whole process, not of one model.
            return TorchAoConfig(Int8WeightOnlyConfig(set_inductor_config=False)), dtype
        from bitsandbytes import supported_torch_devices
    except ImportError as error:
        raise ConfigError(
            f"quantization={choice!r} needs the package {choice.removesuffix('-int8')}, which cannot be imported "
            f"({error}). Install what is listed in requirements-optional.txt."
        ) from error
    if kind not in supported_torch_devices:
        raise ConfigError(
            f"quantization={choice!r} cannot run on {kind!r} with this version of bitsandbytes, which knows "
            f"{', '.join(sorted(supported_torch_devices))}. Choose another device, or quantization='torchao-int8'."
        )
    return BitsAndBytesConfig(load_in_8bit=True), "float16"


def quantization_method(config: PreTrainedConfig) -> str | None:
    """The format of weights that were saved quantised, such as "gptq". None: they were not."""
    saved = getattr(config, "quantization_config", None)
    if not saved:
        return None
    method = saved.get("quant_method") if isinstance(saved, dict) else None
    return str(method or "in some way")[:40]


def refuse_quantized(config: PreTrainedConfig, name: str) -> None:
    """Refuse to quantise weights that were saved quantised.

    Raises:
        ConfigError: names their format.
    """
    if method := quantization_method(config):
        raise ConfigError(
            f"{name} was saved with quantised weights ({method}), which are loaded as they are. Leave quantization "
            "at None, or choose the model's unquantised weights."
        )


def stored_tensors(weight: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that a weight is stored in: itself or, if quantised, its parts."""
    if not hasattr(weight, "__tensor_flatten__"):
        return [weight]
    names, _ = weight.__tensor_flatten__()
    return [part for name in names for part in stored_tensors(getattr(weight, name))]
