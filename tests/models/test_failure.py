"""Why a model could not be loaded, in a sentence that blames what is to blame."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig

from lab.models.load_errors import explain_load_error

QUANTISED = LlamaConfig(quantization_config={"quant_method": "gptq", "bits": 4})


@pytest.mark.parametrize(
    ("error", "config", "says"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), QUANTISED, "the device ran out of memory. Choose a smaller"),
        (ImportError("optimum"), QUANTISED, "its weights are quantised (gptq), and a library that they need is not"),
        (ImportError("a library"), LlamaConfig(), "files are damaged or incomplete: fetch them again. (ImportError: a"),
        (ValueError("bits"), QUANTISED, "its weights are quantised (gptq), which cannot be used here."),
        (RuntimeError("bits"), QUANTISED, "its weights are quantised (gptq), which cannot be used here."),
        (
            RuntimeError("bits"),
            LlamaConfig(),
            "files are damaged or incomplete: fetch them again. (RuntimeError: bits)",
        ),
        (KeyError("lm_head"), QUANTISED, "files are damaged or incomplete: fetch them again."),
        (OSError("no file named model.safetensors found"), None, "it has no weights as safetensors."),
        (OSError("no file named vocab.json found"), None, "files are damaged or incomplete: fetch them again."),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_told_by_what_would_help(error: Exception, config: LlamaConfig | None, says: str) -> None:
    assert says in explain_load_error(error, config)
