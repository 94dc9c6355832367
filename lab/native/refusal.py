"""Which models the step in C computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from lab.pair.llama import unlike_llama

if TYPE_CHECKING:
    from lab.pair.models import LanguageModel

MOST_LANES = 16
"""Float32 numbers in the longest vector register there is."""


def refusal(model: LanguageModel) -> str | None:
    """Why ``step.c`` cannot compute this model, in a sentence; None if it can."""
    inner, config = model.model, model.model.config
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return f"it computes float32 on a CPU, and this model is {model.dtype} on {model.device.type}"
    if different := unlike_llama(model):
        return different
    if model.padding:
        return "its vocabulary is made as wide as another model's"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in ("default", "linear", "llama3", "yarn"):
        return f"its rotary embedding changes with the length ({rope['rope_type']})"
    if any(size % MOST_LANES for size in (config.hidden_size, config.intermediate_size, model.head_dim)):
        return f"its hidden, intermediate and head sizes are not multiples of {MOST_LANES}"
    linears = [module for module in inner.modules() if isinstance(module, nn.Linear)]
    if any(not torch.equal(module.weight, module.weight.bfloat16().float()) for module in linears):
        return "its matrices hold more digits than bfloat16 can"
    return None
