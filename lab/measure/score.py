"""The likelihood of a given text under a given setting (teacher forcing).

The text goes through the engine's own forward pass, and keys and values through its own
storage: each token sees the stored, perhaps quantised, keys and values of itself and of all
tokens before it, as it does in decoding. All of it is computed by what computes a run's steps
after the prompt. The prompt itself a run may have read by another attention, which differs by
rounding (``EngineConfig.prefill_attention``).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lab.backends.interface import NewTokens
from lab.config import EngineConfig
from lab.engine.engine import Engine
from lab.kv_cache.block_pool import BlockPool
from lab.kv_cache.block_table import BlockTable
from lab.kv_cache.formats import KVStorage

CHUNK = 256
"""Tokens per forward pass; more would only take more memory."""


def new_storage(engine: Engine, config: EngineConfig, slots: int) -> KVStorage:
    """Empty slots for the engine's target."""
    model = engine.target
    shape = {"layers": model.layers, "kv_heads": model.kv_heads, "head_dim": model.head_dim}
    where = {"dtype": model.dtype, "device": model.layer_devices}
    return KVStorage(config.kv_dtype, slots, **shape, **where)


@torch.inference_mode()
def log_probabilities(
    engine: Engine, token_ids: list[int], config: EngineConfig, storage: KVStorage | None = None, *, first: int = 1
) -> Iterator[torch.Tensor]:
    """The distribution of each token from number ``first`` on, given those before it. Temperature 1.

    Args:
        token_ids: N of them, at most the model's context.
        config: its cache settings and what computes it matter; a drafter changes no distribution.
        storage: whole blocks for N - 1 tokens, which are in slots 0 .. N - 2 afterwards. None: a new one.

    Yields:
        [n, vocabulary] float64 natural logarithms, chunk by chunk; N - ``first`` rows in all.
    """
    target, _ = engine.backends(config)
    ids = torch.tensor(token_ids[:-1], device=target.model.device)
    # Without a cache one pass has to compute everything, as every step of a run does.
    table, chunk, sdpa = None, len(ids), config.prefill_attention
    if config.kv_cache:
        blocks = -(-len(ids) // config.block_size)
        table = BlockTable(BlockPool(blocks, config.block_size), 0, _ignore, paged=config.paged)
        table.allocate_slots(len(ids))
        storage = storage or new_storage(engine, config, blocks * config.block_size)
        chunk, sdpa = CHUNK, "auto"
    for start in range(0, len(ids), chunk):
        new = ids[start : start + chunk]
        keep = min(len(new), max(0, start + len(new) + 1 - first))
        logits = target.forward([NewTokens(new, start, table, keep)], storage, sdpa)
        yield logits.double().log_softmax(-1)


def divergence(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """KL(p || q) in nats: [n, vocabulary] logarithms -> [n]."""
    return torch.nn.functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)


def surprise(log_p: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """-log p of the tokens that came, in nats: [n, vocabulary] and [n] int64 -> [n]. Perplexity is exp of its mean."""
    return -log_p.gather(-1, token_ids[:, None])[:, 0]


def _ignore(*_: object, **__: object) -> None:
    """Events of the scorer's blocks are not recorded."""
