"""Models with Llama's layers, which a step written for those can compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedConfig

from lab.models.devices import is_dispatched
from lab.models.quantization import stored_tensors

if TYPE_CHECKING:
    from lab.models.language_model import LanguageModel

LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")
"""Model types whose layers consist of RMSNorm, attention with rotary embedding, RMSNorm and SwiGLU."""


def unlike_llama(model: LanguageModel) -> str | None:
    """Why a step written for Llama's layers cannot compute this model, in a sentence; None if it can."""
    inner = model.model
    if is_dispatched(inner):
        return "its weights are in several places"
    if different := unlike_llama_config(inner.config):
        return different
    linears = [module for module in inner.modules() if isinstance(module, nn.Linear)]
    if len(linears) != 7 * model.layers + 1 or not all(map(is_plain, linears)):
        return "its matrices are not plain ones"
    return None


def unlike_llama_config(config: PreTrainedConfig) -> str | None:
    """As ``unlike_llama``, as far as a configuration says it."""
    if config.model_type not in LLAMA_LIKE:
        return f"it knows the layers of {', '.join(LLAMA_LIKE)}, not of {config.model_type}"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        return "its rotary embedding is partial"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    return None


def is_plain(linear: nn.Module) -> bool:
    """True for a matrix and perhaps a bias: no adapter, nothing quantised."""
    return type(linear) is nn.Linear and stored_tensors(linear.weight)[0] is linear.weight
