"""From a checkpoint to a folder that any reader of Hugging Face models can load."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SHARD = "8MB"
"""Plain git and Spaces accept files below 10 MB without LFS."""


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write bfloat16 safetensors in shards, the configuration and the tokenizer; old ones are deleted first."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in [*folder.glob("*.safetensors"), *folder.glob("*.json")]:
        stale.unlink()
    end = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=end)
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size=SHARD)
    tokenizer.model_max_length = model.config.max_position_embeddings
    for trace in ("is_local", "local_files_only"):  # of how this tokenizer was loaded
        tokenizer.init_kwargs.pop(trace, None)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)
