"""The training loop that target and drafts share, and the shapes of the three models."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from lab.training.corpus import VOCABULARY, mixed_batches
from lab.util.machine_info import hardware

CONTEXT = 1024
SHORT = 256
SHORT_SHARE = 0.88
TOKENS_A_STEP = 8192

Loss = Callable[[Any, torch.Tensor], torch.Tensor]
"""(model, tokens [rows, length + 1] int64) -> scalar."""

Parts = Sequence[tuple[np.ndarray, float]]
"""Runs of token ids [N] (uint16), each with its share of every batch."""


def target_shape() -> LlamaConfig:
    """12.9M parameters, deep rather than wide: the cost of a step follows its depth."""
    return _llama(hidden=256, ffn=704, layers=16, heads=4, kv_heads=2)


def draft_shape() -> LlamaConfig:
    """1.0M parameters, half of them the embedding."""
    return _llama(hidden=128, ffn=512, layers=2, heads=2, kv_heads=1)


def _llama(*, hidden: int, ffn: int, layers: int, heads: int, kv_heads: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    )


@dataclass(frozen=True)
class TrainingRecord:
    """A checkpoint's record of its training.

    ``loss`` is the last one printed, the mean of up to twenty steps; ``seconds`` were spent training.
    """

    steps: int
    tokens: int
    seconds: float
    loss: float
    hardware: str

    def then(self, later: "TrainingRecord") -> "TrainingRecord":
        """The record of a model that a ``later`` training continued."""
        places = ", then ".join(dict.fromkeys((self.hardware, later.hardware)))
        steps, tokens = self.steps + later.steps, self.tokens + later.tokens
        return TrainingRecord(steps, tokens, self.seconds + later.seconds, later.loss, places)


Model = TypeVar("Model", bound=nn.Module)


def restore(model: Model, checkpoint: Path) -> tuple[Model, TrainingRecord]:
    """``model`` with the weights of a checkpoint that ``train`` wrote, on the CPU, and their record.

    Raises:
        FileNotFoundError: there is no such checkpoint yet.
    """
    if not checkpoint.exists():
        raise FileNotFoundError(f"{checkpoint} is missing: run --stage {checkpoint.stem} first.")
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    return model.eval(), TrainingRecord(**state["record"])


def next_token_loss(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """Cross-entropy in nats per token."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def train(
    build: Callable[[], Model],
    data: Parts,
    loss: Loss,
    *,
    tokens: int,
    checkpoint: Path,
    device: str,
    peak_lr: float = 4e-3,
    tokens_a_step: int = TOKENS_A_STEP,
    compiled: bool = True,
    seed: int = 0,
    save_every_s: float = 300.0,
) -> Model:
    """Train what ``build`` makes for ``tokens`` tokens, or continue from ``checkpoint`` if it exists; do nothing if it
    is complete.

    Matrices inside the layers are updated by Muon (Jordan 2024; scaled as in Liu et al., 2502.16982), everything else
    by AdamW. Most steps use windows of 256 tokens, the last ones windows of the full context: short windows train
    faster on a CPU, and the position encodings need little of the long ones.

    Returns the float32 model. Progress goes to standard output.
    """
    # Attention weights and gradients underflow as training goes on, and on a CPU arithmetic with
    # denormal numbers is many times slower than with zeros.
    torch.set_flush_denormal(True)
    torch.manual_seed(seed)
    model = build().to(device)
    optimizers = _optimizers(model, peak_lr)
    step, earlier_s, last_loss = 0, 0.0, math.nan
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        step, earlier_s, last_loss = (state["record"][name] for name in ("steps", "seconds", "loss"))
        print(f"resumed {checkpoint.name} at {step * tokens_a_step / 1e6:.2f}M tokens", flush=True)

    steps = max(1, tokens // tokens_a_step)
    short_steps = int(SHORT_SHARE * steps)
    step_loss = torch.compile(loss, dynamic=False) if compiled else loss
    phases = [(range(step, short_steps), SHORT, 0), (range(max(step, short_steps), steps), CONTEXT, short_steps)]

    def save(done: int) -> None:
        seconds = earlier_s + time.monotonic() - began
        record = TrainingRecord(done, done * tokens_a_step, seconds, last_loss, hardware(device))
        state = {"model": model.state_dict(), "record": asdict(record)}
        state["optimizers"] = [optimizer.state_dict() for optimizer in optimizers]
        torch.save(state, checkpoint.with_suffix(".part"))
        checkpoint.with_suffix(".part").replace(checkpoint)

    began = last_save = time.monotonic()
    first, recent = step, []
    for steps_left, length, phase_start in phases:
        if not steps_left:
            continue
        if isinstance(model, LlamaForCausalLM):
            # On a CPU, explicit attention is faster on short windows; fused attention needs less
            # memory on long ones.
            model.set_attn_implementation("eager" if length == SHORT and device == "cpu" else "sdpa")
        source = mixed_batches(data, tokens_a_step // length, length, seed=seed, skip=steps_left.start - phase_start)
        for step in steps_left:
            _set_lr(optimizers, peak_lr, step / steps)
            batch = next(source).to(device)
            with torch.autocast(device.split(":")[0], torch.bfloat16):
                value = step_loss(model, batch)
            value.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            recent.append(value.item())
            if (step + 1) % 20 == 0 or step + 1 == steps:
                elapsed, last_loss = time.monotonic() - began, float(np.mean(recent))
                rate = (step + 1 - first) * tokens_a_step / elapsed
                print(
                    f"{(step + 1) * tokens_a_step / 1e6:7.2f}M of {steps * tokens_a_step / 1e6:.2f}M tokens"
                    f"  loss {last_loss:.3f}  {rate:,.0f} tokens/s"
                    f"  {(steps - step - 1) * tokens_a_step / rate / 60:.0f} min left",
                    flush=True,
                )
                recent.clear()
            if time.monotonic() - last_save > save_every_s or step + 1 == steps:
                save(step + 1)
                last_save = time.monotonic()
    if isinstance(model, LlamaForCausalLM):
        model.set_attn_implementation("sdpa")
    return model.eval()


TABLES = "embed", "lm_head", "markov"
"""What names of matrices contain that have a row for each token."""


def _optimizers(model: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    outside = [p for name, p in trained if p.ndim != 2 or any(part in name for part in TABLES)]
    inside = [p for _, p in trained if all(p is not one for one in outside)]
    muon = [torch.optim.Muon(inside, lr=lr, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")] if inside else []
    return [*muon, torch.optim.AdamW(outside, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)]


def _set_lr(optimizers: list[torch.optim.Optimizer], peak: float, progress: float) -> None:
    """Warm up over the first fiftieth, stay flat to 40%, then decay linearly to nearly nothing.

    A function of progress alone: a resumed run with a smaller ``tokens`` simply
    starts to decay earlier.
    """
    factor = min(1.0, progress / 0.02 + 0.02, 0.02 + (1 - progress) / 0.6)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = peak * factor


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
