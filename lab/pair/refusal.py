"""Models that the engine would decode wrongly, refused by name and with the reason."""

from __future__ import annotations

from transformers import PreTrainedConfig, PreTrainedModel

from lab.config import UnsupportedModelError


def refuse_unsupported(config: PreTrainedConfig, name: str, model_class: type[PreTrainedModel] | None = None) -> None:
    """Refuse a model that full attention over cached positions would decode wrongly.

    Looks at the configuration alone, so it can be asked before weights are loaded.

    Raises:
        UnsupportedModelError: names the model and the reason.
    """
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        _refuse(name, "it is an encoder-decoder model; this lab decodes decoder-only models")
    if text.model_type in ("mamba", "mamba2", "falcon_mamba", "rwkv", "recurrent_gemma", "xlstm"):
        _refuse(name, "it has recurrent layers, whose state cannot be rolled back by moving a length")
    if model_class is not None and not model_class._supports_attention_backend:
        _refuse(name, f"the attention of {model_class.__name__} cannot be replaced by the lab's")
    kinds = set(getattr(text, "layer_types", None) or ())
    if "sliding_attention" in kinds or (not kinds and getattr(text, "sliding_window", None) is not None):
        _refuse(name, f"it has sliding-window attention (window {text.sliding_window}); the lab's is full attention")
    if getattr(text, "attention_chunk_size", None) is not None:
        _refuse(name, f"it has chunked attention (chunk {text.attention_chunk_size}); the lab's is full attention")
    if odd := kinds - {"full_attention"}:
        _refuse(name, f"it has layers of another kind ({', '.join(sorted(odd))}), recurrent or shortened")
    if getattr(text, "attn_logit_softcapping", None) is not None:
        _refuse(name, f"it caps its attention scores (softcap {text.attn_logit_softcapping})")
    if getattr(text, "kv_lora_rank", None) is not None:
        _refuse(name, "it has latent attention (MLA), whose cache is not keys and values per head")
    if getattr(text, "num_kv_shared_layers", 0) or getattr(text, "kv_sharing_modes", None):
        _refuse(name, "some of its layers share the keys and values of others")


def refuse_sinks(model: PreTrainedModel, name: str) -> None:
    """Attention sinks are parameters, not configuration: look for them in the model.

    Raises:
        UnsupportedModelError: the model has them.
    """
    if any(parameter.endswith("sinks") for parameter, _ in model.named_parameters()):
        _refuse(name, "it has attention sinks, which the lab's attention leaves out")


def _refuse(name: str, reason: str) -> None:
    raise UnsupportedModelError(
        f"{name} cannot be decoded here: {reason}. "
        "Llama, Qwen2, Qwen3, SmolLM3, OLMo2, Granite, Phi and GPT-2 models work."
    )
