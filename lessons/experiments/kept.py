"""The cache of one growing text, by the kind of a model's layers: blocks and bytes, counted from events."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from pydantic import Field
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.load import new_engine
from lab.measure.workload import write
from lab.models.language_model import LanguageModel
from lab.trace.events import BlockAllocated, BlockFreed, StepTimed
from lab.trace.run import Run
from lessons.experiments.base import Experiment, Load, Measured, Watch, Work

OF_KEPT = {
    "tokens": "of the text in the end",
    "blocks": "that are held then",
    "slid_out": "blocks freed before, because no token to come sees theirs",
    "block_bytes": "of one block",
    "bytes": "of the blocks and the state in the end",
    "half_bytes": "the same when the text was half as long",
    "state_bytes": "of the recurrent layers, however long the text",
    "found": "tokens that a second text finds, which goes another way after three quarters of the first",
    "sent": "tokens of that second text",
    "lengths": "of the text, block by block",
    "bytes_at": "bytes at each of them",
    "blocks_at": "blocks at each of them",
}
PROMPT_TOKENS, BLOCK_SIZE, NUM_BLOCKS = 64, 16, 512
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
"""Of all the models: four layers, and two query heads to a KV head."""
WINDOWED = {
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": None,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "first_k_dense_replace": 4,
}
DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("llama", {}),
    "window": ("gpt_oss", WINDOWED),
    "latent": ("deepseek_v2", LATENT),
    "hybrid": ("qwen3_5_text", DELTA),  # whose last of four layers has full attention
}
"""By transformers' names, with what is their own."""


class Kept(Experiment):
    """One text of ``tokens`` tokens, its prompt included, in a small model of each kind: ``full`` attention with
    grouped queries (Llama); a sliding ``window`` and learned sinks in three of four layers (gpt-oss); ``latent``
    attention (DeepSeek V2); ``hybrid``, with a recurrent state in three of four layers (Qwen3.5)."""

    window: int = Field(default=32, ge=1, le=512)
    tokens: int = Field(default=320, ge=96, le=512)

    def names(self) -> Mapping[str, Any]:
        return dict.fromkeys(KINDS, dict.fromkeys(OF_KEPT))

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        other = load("matched")
        (text,) = write(other, [PROMPT_TOKENS])
        prompt = other.tokenizer(text)["input_ids"][:PROMPT_TOKENS]
        found: dict[str, dict[str, Any]] = {}
        for place, kind in enumerate(KINDS):
            if cancelled.is_set():
                return Measured({})
            watch(f"{kind}: a text of {self.tokens} tokens", place / len(KINDS))
            found[kind] = counted_kept(small_engine(kind, self.window, other), prompt, self.tokens)
            yield
        return Measured(found)


def small_engine(kind: str, window: int, of: Engine) -> Engine:
    """An engine of a small model with random weights, and another's tokenizer. On the processor by torch, in float32:
    the same on every machine."""
    model_type, own = KINDS[kind]
    windowed = {"sliding_window": window} if kind == "window" else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = CONFIG_MAPPING[model_type](**SIZES | own | windowed, vocab_size=of.target.vocabulary)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return new_engine(LanguageModel(model, kind), of.tokenizer, kernels="reference")


def counted_kept(engine: Engine, prompt: list[int], tokens: int) -> dict[str, Any]:
    """The figures of a text that grows to ``tokens`` tokens."""
    config = EngineConfig(
        paged=True, block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, enable_prefix_caching=True, kernels="reference"
    )
    sampling = SamplingParams(max_tokens=tokens - len(prompt) + 1, temperature=0.0, ignore_eos=True)
    run = engine.generate(prompt, config, sampling)
    state = engine.target.recurrent.state_bytes if engine.target.recurrent else 0
    lengths, blocks = zip(*held(run), strict=True)
    sizes = [count * run.started.block_bytes + state for count in blocks]
    branch = [*prompt, *run.token_ids][: 3 * tokens // 4]
    branch[-1] ^= 1
    again = engine.generate(branch, config, SamplingParams(max_tokens=1, temperature=0.0))
    return {
        "tokens": tokens,
        "blocks": blocks[-1],
        "slid_out": sum(isinstance(event, BlockFreed) and event.slid_out for event in run.events),
        "block_bytes": run.started.block_bytes,
        "bytes": sizes[-1],
        "half_bytes": sizes[next(i for i, length in enumerate(lengths) if length >= tokens / 2)],
        "state_bytes": state,
        "found": again.metrics.cached_prompt_tokens,
        "sent": len(branch),
        "lengths": list(lengths),
        "bytes_at": sizes,
        "blocks_at": list(blocks),
    }


def held(run: Run) -> Iterator[tuple[int, int]]:
    """The length of the text and the blocks that it holds, each time that it has filled a block, and in the end."""
    blocks = 0
    steps = [event for event in run.events if isinstance(event, StepTimed)]
    for event in run.events:
        blocks += isinstance(event, BlockAllocated) - isinstance(event, BlockFreed)
        if isinstance(event, StepTimed) and (event.kv_tokens % BLOCK_SIZE == 0 or event is steps[-1]):
            yield event.kv_tokens, blocks
