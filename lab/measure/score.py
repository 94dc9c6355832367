"""The likelihood of a given text under a given setting (teacher forcing), and the error of each KV format in it.

The text goes through the engine's own forward pass, and keys and values through its own storage: each token sees the
stored, perhaps quantised, keys and values of itself and of all tokens before it, as it does in decoding. All of it is
computed by what computes a run's steps after the prompt. The prompt itself a run may have read by another attention,
which differs by rounding (``EngineConfig.prefill_attention``).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from lab.backends.interface import NewTokens
from lab.config import EngineConfig, KVFormat
from lab.engine.engine import Engine
from lab.kv_cache.block_pool import BlockPool
from lab.kv_cache.block_table import BlockTable
from lab.kv_cache.kv_cache import new_storage, token_bytes
from lab.kv_cache.storage import KVStorage, formats_for
from lab.measure.interval import Interval, ratio_interval

CHUNK = 256
"""Tokens per forward pass; more would only take more memory."""


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
        table = BlockTable(BlockPool(blocks, config.block_size), 0, lambda *_, **__: None, paged=config.paged)
        table.allocate_slots(len(ids))
        storage = storage or storage_for(engine, config, blocks * config.block_size)
        chunk, sdpa = CHUNK, "auto"
    for start in range(0, len(ids), chunk):
        new = ids[start : start + chunk]
        keep = min(len(new), max(0, start + len(new) + 1 - first))
        logits = target.forward([NewTokens(new, start, table, keep)], storage, sdpa)
        yield logits.double().log_softmax(-1)


def storage_for(engine: Engine, config: EngineConfig, slots: int) -> KVStorage:
    """Empty slots for the target, as ``config`` stores its keys and values."""
    return new_storage(engine.target, config.kv_dtype, slots, skipped=config.kv_cache_dtype_skip_layers)


def divergence(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """KL(p || q) in nats: [n, vocabulary] logarithms -> [n]."""
    return torch.nn.functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)


def surprise(log_p: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """-log p of the tokens that came, in nats: [n, vocabulary] and [n] int64 -> [n]. Perplexity is exp of its mean."""
    return -log_p.gather(-1, token_ids[:, None])[:, 0]


# -- formats ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class FormatError:
    """One format against the model's own dtype ("auto").

    Attributes:
        key_error, value_error: ||stored - computed|| / ||computed|| (Frobenius) over all layers, heads and
            tokens, of the keys (rotary embedding applied) and values that "auto" computes.
        bytes_per_token: scales included, all layers.
        bytes_ratio: those of "auto" / its own.
        perplexity: exp of the mean surprise.
        perplexity_ratio: its own / that of "auto".
        kl: mean KL("auto" || format) of next-token distributions, nats per token.
    """

    kv_dtype: str
    key_error: float
    value_error: float
    bytes_per_token: int
    bytes_ratio: float
    perplexity: float
    perplexity_ratio: Interval
    kl: Interval


def kv_errors(
    engine: Engine,
    windows: list[list[int]],
    report: Callable[[str], None],
    formats: Sequence[KVFormat] | None = None,
    skipped: str = "",
) -> list[FormatError]:
    """Formats, "auto" first (None: all that the target's heads allow), on the same windows of token ids, each at least
    two tokens long and at most the model's context: read from an empty cache, the first token given and all others
    scored. ``skipped``: layers that none of them stores (``kv_cache_dtype_skip_layers``)."""
    formats = formats or formats_for(engine.target.head_dim)
    configs = {form: EngineConfig(kv_dtype=form, kv_cache_dtype_skip_layers=skipped) for form in formats}
    surprises = {form: [0.0] * len(windows) for form in formats}  # one sum per window
    divergences = {form: [0.0] * len(windows) for form in formats}
    squares = {form: torch.zeros(2, 2, dtype=torch.float64) for form in formats}
    for window, ids in enumerate(windows):
        tokens, start, size = len(ids) - 1, 1, EngineConfig().block_size
        storages = {form: storage_for(engine, config, -(-tokens // size) * size) for form, config in configs.items()}
        passes = [log_probabilities(engine, ids, config, storages[form]) for form, config in configs.items()]
        for chunk in zip(*passes, strict=True):
            written = torch.tensor(ids[start : start + len(chunk[0])], device=chunk[0].device)
            start += len(written)
            for form, log_q in zip(formats, chunk, strict=True):
                surprises[form][window] += surprise(log_q, written).sum().item()
                divergences[form][window] += divergence(chunk[0], log_q).sum().item()
        for form, config in configs.items():
            squares[form] += storing_squares(storages["auto"], storage_for(engine, config, tokens), tokens)
        if (window + 1) % 20 == 0 or window + 1 == len(windows):
            report(f"  window {window + 1} of {len(windows)} read")

    counts = [len(ids) - 1 for ids in windows]
    kept = {form: token_bytes(engine.target, form, skipped) for form in formats}
    rows = []
    for form in formats:
        off, whole = squares[form].sqrt().tolist()
        more = [own - auto for own, auto in zip(surprises[form], surprises["auto"], strict=True)]
        rows.append(
            FormatError(
                kv_dtype=form,
                key_error=off[0] / whole[0],
                value_error=off[1] / whole[1],
                bytes_per_token=kept[form],
                bytes_ratio=kept["auto"] / kept[form],
                perplexity=math.exp(sum(surprises[form]) / sum(counts)),
                perplexity_ratio=ratio_interval(more, counts).map(math.exp),
                kl=ratio_interval(divergences[form], counts),
            )
        )
    return rows


@torch.inference_mode()
def storing_squares(native: KVStorage, other: KVStorage, tokens: int) -> torch.Tensor:
    """Store in ``other`` what ``native`` holds in its first slots, and compare.

    Returns:
        [2, 2] float64 on the CPU: sums of squares of the error and of what was stored; of keys and of values.
    """
    sums = torch.zeros(2, 2, dtype=torch.float64)
    for source, layer in zip(filter(None, native.layers), filter(None, other.layers), strict=True):
        key, value = source.read(slice(0, tokens))
        layer.write(torch.arange(tokens, device=key.device), key, value)
        for i, (stored, x) in enumerate(zip(layer.read(slice(0, tokens)), (key, value), strict=True)):
            sums[0, i] += (stored.double() - x.double()).square().sum().cpu()
            sums[1, i] += x.double().square().sum().cpu()
    return sums
