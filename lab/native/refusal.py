"""Which models the step in C computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from lab.pair.devices import is_dispatched

if TYPE_CHECKING:
    from lab.pair.models import LanguageModel

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Model types whose layers are: RMSNorm, attention with rotary embedding, RMSNorm, SwiGLU."""
MOST_LANES = 16
"""Numbers in the longest register there is."""


def refusal(model: LanguageModel) -> str | None:
    """Why ``step.c`` cannot compute this model, in a sentence; None if it can."""
    inner, config = model.model, model.model.config
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return f"it computes float32 on a CPU, and this model is {model.dtype} on {model.device.type}"
    if is_dispatched(inner):
        return "its weights are in several places"
    if config.model_type not in FAMILIES:
        return f"it knows the layers of {', '.join(FAMILIES)}, not of {config.model_type}"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in ("default", "linear", "llama3", "yarn"):
        return f"its rotary embedding changes with the length ({rope['rope_type']})"
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "its rotary embedding is partial"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    if any(size % MOST_LANES for size in (config.hidden_size, config.intermediate_size, model.head_dim)):
        return f"its hidden, intermediate and head sizes are not multiples of {MOST_LANES}"
    linears = [module for module in inner.modules() if isinstance(module, nn.Linear)]
    kinds = {type(module) for module in linears}
    if kinds != {nn.Linear} or len(linears) != 7 * model.layers + 1:
        return "its matrices are not plain ones"
    if any(not torch.equal(module.weight, module.weight.bfloat16().float()) for module in linears):
        return "its matrices hold more digits than bfloat16 can"
    return None
