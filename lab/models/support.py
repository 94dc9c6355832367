"""The models that the engine decodes, and those with Llama's layers, which a step written for those computes."""

from __future__ import annotations

from torch import nn
from transformers import MODEL_FOR_MASKED_LM_MAPPING, PreTrainedConfig, PreTrainedModel

from lab.errors import UnsupportedModelError
from lab.models.devices import is_dispatched
from lab.models.model_shape import WITHOUT_ATTENTION, kv_sources, windows_of
from lab.models.own_attention import own_attention, takes_cache
from lab.models.quantization import stored_tensors
from lab.util.messages import listed

LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "mimo")
"""Model types whose layers consist of RMSNorm, attention with rotary embedding, RMSNorm and SwiGLU."""
WORKING = {
    "Llama": "llama",
    "Mistral": "mistral",
    "Qwen2": "qwen2",
    "Qwen3": "qwen3",
    "Qwen3-MoE": "qwen3_moe",
    "Mixtral": "mixtral",
    "Gemma 2": "gemma2",
    "gpt-oss": "gpt_oss",
    "Qwen3.5": "qwen3_5_text",
    "LFM2": "lfm2",
    "SmolLM3": "smollm3",
    "Phi-4": "phi3",
    "OLMo 2": "olmo2",
    "DeepSeek V3": "deepseek_v3",
    "GPT-2": "gpt2",
}
"""What a refusal names as working, and the model types: the tests decode with each."""
KINDS = {"full_attention", "sliding_attention", "chunked_attention", "indexed_attention", "hybrid"}
"""Kinds of layers with attention, by transformers' names."""
RECURRENT = ("rwkv", "recurrent_gemma", "xlstm")
"""Model types whose recurrent layers keep their states in a way of their own."""


def refuse_unsupported(config: PreTrainedConfig, name: str, model_class: type[PreTrainedModel] | None = None) -> None:
    """Refuse a model that full attention over cached positions would decode wrongly.

    Looks at the configuration alone, so it can be called before weights are loaded.

    Raises:
        UnsupportedModelError: names the model and the reason.
    """
    if other := unsupported_cache(config):
        refuse_decoding(name, other)
    if model_class is not None and own_attention(config, model_class) and not takes_cache(model_class):
        refuse_decoding(name, f"{model_class.__name__} of transformers keeps no keys and values from token to token")


def other_cache(config: PreTrainedConfig, model: PreTrainedModel | None = None) -> str | None:
    """Why kernels that read a key and a value per layer, position and KV head cannot compute a model, in a sentence;
    None if they can."""
    text = config.get_text_config(decoder=True)
    if own := own_attention(config, model and type(model)):
        return f"its attention {own}"
    if getattr(text, "kv_lora_rank", None) is not None:
        return "it has latent attention (MLA)"
    if 0 in windows_of(config):
        return "it has recurrent layers"
    if kv_sources(config):
        return "some of its layers share the keys and values of others"
    return None


def other_attention(config: PreTrainedConfig, model: PreTrainedModel | None = None) -> str | None:
    """As ``other_cache``, of kernels for full attention. Sinks are parameters, not configuration, so the ``model``
    itself is searched for them."""
    text = config.get_text_config(decoder=True)
    if other := other_cache(config, model):
        return other
    softcap = getattr(text, "attn_logit_softcapping", None)
    if softcap is not None:
        return f"it caps its attention scores (softcap {softcap})"
    if model is not None and any(name.endswith("sinks") for name, _ in model.named_parameters()):
        return "it has attention sinks"
    if window := next(filter(None, windows_of(config)), None):
        return f"it has sliding-window attention (window {window}) in some layers or all"
    return None


def unsupported_cache(config: PreTrainedConfig) -> str | None:
    """Why a model's cache is something else than keys and values by position, of all or of the newest, and recurrent
    states; None: it is not."""
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        return "it is an encoder-decoder model, which also keeps keys and values of what its encoder has read"
    # A model is an encoder if transformers has a masked-LM head for it, unless it is configured as a decoder.
    if type(text) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(text, "is_decoder", False):
        return "it is an encoder, whose tokens also see those after them: it does not decode, and keeps no cache"
    if getattr(text, "cross_attention_layers", None) or getattr(text, "add_cross_attention", False):
        return "it has layers of cross-attention, which keep keys and values of a picture or of another text"
    if text.model_type in RECURRENT:
        return "its recurrent layers keep their state in a way of their own, so that no earlier one can be brought back"
    kinds = set(getattr(text, "layer_types", None) or ())
    window = getattr(text, "sliding_window", None)
    if window is not None and window in windows_of(config) and (not isinstance(window, int) or window < 1):
        return f"its sliding_window is {str(window)[:40]!r}, which is no number of positions"
    if odd := kinds - WITHOUT_ATTENTION - KINDS:
        return f"it has layers of another kind ({', '.join(sorted(odd))}), recurrent or shortened"
    if "indexed_attention" in kinds and len(kinds) > 1:
        return "only some of its layers choose among positions by an indexer, and the others keep something else"
    if getattr(text, "num_kv_shared_layers", 0) and not kv_sources(config):
        return "some of its layers share the keys and values of others"
    return None


def refuse_decoding(name: str, reason: str, error: Exception | None = None) -> None:
    raise UnsupportedModelError(
        f"{name} cannot be decoded here: {reason}. {listed([*WORKING])} models work, for example."
    ) from error


def unlike_llama(model: PreTrainedModel, layers: int) -> str | None:
    """Why a step written for Llama's layers cannot compute this model, in a sentence; None if it can."""
    if is_dispatched(model):
        return "its weights are in several places"
    if different := unlike_llama_config(model.config):
        return different
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if len(linears) != 7 * layers + 1 or not all(map(is_plain, linears)):
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
    return other_attention(config)


def is_plain(linear: nn.Module) -> bool:
    """True for a matrix and perhaps a bias: no adapter, nothing quantised."""
    return type(linear) is nn.Linear and stored_tensors(linear.weight)[0] is linear.weight
