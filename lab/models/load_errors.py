"""Why a model could not be loaded: turns a library's error into what is wrong and what would be right."""

from __future__ import annotations

from pickle import UnpicklingError

from transformers import PreTrainedConfig

from lab.models.devices import BUILDS
from lab.models.quantization import quantization_method
from lab.util.device_memory import is_out_of_memory
from lab.util.messages import error_summary


def explain_load_error(error: Exception, config: PreTrainedConfig | None) -> str:
    """The sentence after "could not be loaded:". ``config``: the model's, if it could be read."""
    if isinstance(error, UnpicklingError):  # torch's own message advises running it
        return (
            "its weights are a Python pickle that is damaged or holds more than tensors; nothing of it was run. Choose "
            "a copy of the model with safetensors."
        )
    if is_out_of_memory(error):
        return "the device ran out of memory. Choose a smaller model or dtype."
    if "no kernel image" in str(error):
        return (
            "this build of PyTorch, or a library beside it, has no kernels for the GPU. Choose another device, or "
            f"'cpu'; or install a build that has them: {BUILDS}. ({error_summary(error)})"
        )
    if (method := config and quantization_method(config)) and isinstance(error, ImportError):
        return (
            f"its weights are quantised ({method}), and a library that they need is not installed. Install it, or "
            f"choose the model's unquantised weights. ({error_summary(error)})"
        )
    if method and isinstance(error, (ValueError, RuntimeError)):  # damaged files raise errors of other kinds
        return (
            f"its weights are quantised ({method}), which cannot be used here. Choose the model's unquantised "
            f"weights. ({error_summary(error)})"
        )
    # transformers lists the names it looked for. Other errors (a full disk, a broken connection) name a file, too.
    if "file named" in str(error) and "model.safetensors" in str(error):
        return (
            "it has no weights as safetensors. (A GGUF file is llama.cpp's.) Choose a copy of the model that has them."
        )
    return (
        "give a folder with config.json and safetensors, or a hub id of a causal language model; if it is one, its "
        f"files are damaged or incomplete: fetch them again. ({error_summary(error)})"
    )
