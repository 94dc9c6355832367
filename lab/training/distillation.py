"""The material that the draft learns from: the target's distributions, on text that the target has written.

A draft continues what the target has written, not what an author has. DistillSpec (Zhou et al., 2310.08461, section 4),
too, distils on text that a model has written; its on-policy data, however, is the draft's own.
"""

import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, GenerationConfig, LlamaForCausalLM

from lab.training.training import Loss

TEMPERATURE = 0.8
"""Both distributions are taken at the temperature at which the pair will mostly be sampled."""

TV_WEIGHT = 3.0
"""Relative to a KL weight of 1: the two terms are of similar size once the draft has learnt something."""


def distillation_loss(target: LlamaForCausalLM, *, kl_weight: float = 1.0) -> Loss:
    """``kl_weight`` KL(p || q) in nats plus ``TV_WEIGHT`` (1 - sum_x min(p, q)), averaged over positions."""
    target = target.eval().requires_grad_(False)
    # As in train(): explicit attention is faster on a CPU, and nothing is kept for a backward pass.
    target.set_attn_implementation("eager" if target.device.type == "cpu" else "sdpa")

    def loss(draft: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            log_p = _log_probabilities(target, tokens)
        log_q = _log_probabilities(draft, tokens)
        p, q = log_p.exp(), log_q.exp()
        divergence = (p * (log_p - log_q)).sum(-1)
        shared = torch.minimum(p, q).sum(-1)
        return (kl_weight * divergence + TV_WEIGHT * (1 - shared)).mean()

    return loss


def _log_probabilities(model: LlamaForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """[rows, length, vocabulary] float32, of the token that follows each one but the last."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return F.log_softmax(logits.float() / TEMPERATURE, dim=-1)


SAMPLE = 256
"""Tokens per sample: prompt, continuation, and the end-of-text token that separates it from the next."""

PROMPTS = (8, 16, 32, 64, 96)
"""Prompt lengths in tokens, in turn: each serves one batch per temperature."""


def grouped_attention(
    module: torch.nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: None, scaling: float, **_: object
) -> tuple[torch.Tensor, None]:
    """Causal attention of rows of equal length, for ``transformers``' attention interface.

    ``q`` [rows, heads, new, dim], ``k`` and ``v`` [rows, kv_heads, past + new, dim] ->
    [rows, new, heads, dim]. ``new`` is everything (prefill) or one token.
    """
    rows, heads, new, dim = q.shape
    if new > 1:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=scaling)
        return out.transpose(1, 2).contiguous(), None
    # The heads that share keys are rows of one matrix product: on a CPU this is several times
    # as fast as the fused kernel, which needs the keys repeated for every head.
    grouped = q.view(rows, k.shape[1], heads // k.shape[1], dim)
    weights = (grouped @ k.transpose(-1, -2) * scaling).softmax(-1, dtype=torch.float32)
    return (weights.to(v.dtype) @ v).view(rows, 1, heads, dim), None


AttentionInterface.register("grouped", grouped_attention)
AttentionMaskInterface.register("grouped", lambda *_, **__: None)


@torch.no_grad()
def continuations(model: LlamaForCausalLM, prompts: torch.Tensor, new_tokens: int, temperature: float) -> torch.Tensor:
    """``prompts`` [rows, length] (int64) with the model's continuations: [rows, length + new_tokens], int64.

    Temperature 0 is greedy. A text that ends is followed by a new one, so every row
    has the full length.
    """
    sampled = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    config, attention = model.generation_config, model.config._attn_implementation
    # The model's own, and not an argument: generate takes the end-of-text token of the model's own where an argument
    # has none.
    model.generation_config = GenerationConfig(max_new_tokens=new_tokens, eos_token_id=None, pad_token_id=0, **sampled)
    model.set_attn_implementation("grouped")
    try:
        return model.generate(prompts, attention_mask=torch.ones_like(prompts))
    finally:
        model.set_attn_implementation(attention)
        model.generation_config = config


def sample_target(
    target: LlamaForCausalLM,
    tokens: np.ndarray,
    *,
    count: int,
    file: Path,
    temperatures: tuple[float, ...] = (0.8, 0.8, 0.0),
    rows: int = 128,
    seed: int = 0,
) -> np.ndarray:
    """``count`` samples of the target, rounded up to whole batches. Shape [samples x 256], uint16.

    Those already in ``file`` are not drawn again. Each sample continues a random window of
    ``tokens`` [N] (uint16), which should be those that the target was trained on. Batches
    cycle through the temperatures.
    """
    done = np.load(file) if file.exists() else np.empty(0, np.uint16)
    first, batches = len(done) // (rows * SAMPLE), -(-count // rows)
    began = time.monotonic()
    for batch in range(first, batches):
        rng = np.random.default_rng((seed, batch))
        torch.manual_seed(int(rng.integers(2**31)))
        length = PROMPTS[batch // len(temperatures) % len(PROMPTS)]
        starts = rng.integers(len(tokens) - length, size=(rows, 1))
        prompts = torch.from_numpy(tokens[starts + np.arange(length)].astype(np.int64)).to(target.device)
        temperature = temperatures[batch % len(temperatures)]
        written = continuations(target, prompts, SAMPLE - 1 - length, temperature).cpu().numpy()
        closed = np.concatenate([written, np.full((rows, 1), target.config.eos_token_id)], axis=1)
        done = np.concatenate([done, closed.astype(np.uint16).ravel()])
        np.save(file, done)
        rate = (batch + 1 - first) * rows * SAMPLE / (time.monotonic() - began)
        print(
            f"{len(done) / 1e6:7.2f}M of {batches * rows * SAMPLE / 1e6:.2f}M tokens sampled"
            f"  {rate:,.0f} tokens/s  {(batches - batch - 1) * rows * SAMPLE / rate / 60:.0f} min left",
            flush=True,
        )
    return done
