"""The error of a KV format: in stored keys and values, and in the output.

Each window of a text is read from an empty cache; its first token is given and all others are scored. All formats read
the same windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lab.config import EngineConfig
from lab.engine.engine import Engine
from lab.kv_cache.formats import FORMATS, KVStorage, bytes_per_token
from lab.measure.interval import Interval, ratio_interval
from lab.measure.score import divergence, log_probabilities, new_storage, surprise


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


def kv_errors(engine: Engine, windows: list[list[int]], report: Callable[[str], None]) -> list[FormatError]:
    """Every format on windows of token ids, each at least two tokens long and at most the model's context."""
    configs = {form: EngineConfig(kv_dtype=form) for form in FORMATS}
    surprises: dict[str, list[float]] = {form: [] for form in FORMATS}  # one sum per window
    divergences: dict[str, list[float]] = {form: [] for form in FORMATS}
    squares = {form: torch.zeros(2, 2, dtype=torch.float64) for form in FORMATS}
    for done, ids in enumerate(windows, 1):
        tokens = len(ids) - 1
        storages = {form: new_storage(engine, config, _slots(tokens)) for form, config in configs.items()}
        passes = [log_probabilities(engine, ids, config, storages[form]) for form, config in configs.items()]
        sums = dict.fromkeys(FORMATS, (0.0, 0.0))
        start = 1
        for chunk in zip(*passes, strict=True):
            written = torch.tensor(ids[start : start + len(chunk[0])], device=chunk[0].device)
            start += len(written)
            for form, log_q in zip(FORMATS, chunk, strict=True):
                nats, kl = sums[form]
                nats += surprise(log_q, written).sum().item()
                kl += divergence(chunk[0], log_q).sum().item()
                sums[form] = nats, kl
        for form in FORMATS:
            surprises[form].append(sums[form][0])
            divergences[form].append(sums[form][1])
            squares[form] += storing_squares(storages["auto"], new_storage(engine, configs[form], tokens), tokens)
        if done % 20 == 0 or done == len(windows):
            report(f"  window {done} of {len(windows)} read")

    model, counts = engine.target, [len(ids) - 1 for ids in windows]
    shape = {"layers": model.layers, "kv_heads": model.kv_heads, "head_dim": model.head_dim, "dtype": model.dtype}
    native = bytes_per_token("auto", **shape)
    rows = []
    for form in FORMATS:
        off, whole = squares[form].sqrt().tolist()
        more = [own - auto for own, auto in zip(surprises[form], surprises["auto"], strict=True)]
        rows.append(
            FormatError(
                kv_dtype=form,
                key_error=off[0] / whole[0],
                value_error=off[1] / whole[1],
                bytes_per_token=bytes_per_token(form, **shape),
                bytes_ratio=native / bytes_per_token(form, **shape),
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
    for source, layer in zip(native.layers, other.layers, strict=True):
        key, value = source.read(slice(0, tokens))
        layer.write(torch.arange(tokens, device=key.device), key, value)
        for i, (stored, x) in enumerate(zip(layer.read(slice(0, tokens)), (key, value), strict=True)):
            sums[0, i] += (stored.double() - x.double()).square().sum().cpu()
            sums[1, i] += x.double().square().sum().cpu()
    return sums


def _slots(tokens: int) -> int:
    size = EngineConfig().block_size
    return -(-tokens // size) * size
