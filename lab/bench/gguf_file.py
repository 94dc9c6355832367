"""A Llama as a GGUF file, the format that llama.cpp reads: its weights and its shape, without a tokenizer."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from transformers import PreTrainedModel

from lab.errors import UnsupportedModelError


def write_gguf(model: PreTrainedModel, path: Path, dtype: str) -> None:
    """Write a Llama's matrices in ``dtype`` ("bf16", "f16" or "f32"), its norms in float32.

    Raises:
        UnsupportedModelError: it is not a Llama, it has biases, or its rotary embedding is scaled.
    """
    config = model.config
    plain = config.model_type == "llama" and not (config.attention_bias or config.mlp_bias)
    if not plain or config.rope_parameters.get("rope_type", "default") != "default":
        raise UnsupportedModelError(
            "only plain Llama models, with neither biases nor a scaled rotary embedding, are written as GGUF here. "
            "Compare with the embedded target."
        )
    writer, head_dim = gguf.GGUFWriter(path, "llama"), config.head_dim
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")

    kind = gguf.GGMLQuantizationType[dtype.upper()]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.named_parameters():  # tied ones once, as the embedding: llama.cpp ties them again
        numbers = weight.detach().float()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            numbers = _rotary_pairs(numbers, head_dim)
        form = kind if numbers.ndim == 2 else gguf.GGMLQuantizationType.F32
        stored = gguf.quantize(numbers.numpy(), form)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), stored, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _rotary_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """[heads * head_dim, hidden]: makes the two numbers that are rotated together, half a head apart, adjacent."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2).contiguous()
