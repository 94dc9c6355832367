"""What a KV format costs in quality: how far off stored keys and values are, and what that does to the output.

A text is cut into windows side by side, each read from an empty cache; the first
token of a window is given and all others are scored. All formats read the same windows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from lab.config import EngineConfig
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.kv_cache.formats import FORMATS, KVStorage, bytes_per_token
from lab.measure.interval import FEWEST, METHOD, Interval, ratio_interval
from lab.measure.score import divergence, log_probabilities, new_storage, surprise

WINDOW = 1024
"""Tokens of a window, if the model's context is that long."""


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


def run_kv(engine: Engine, texts: list[tuple[str, str]], report: Callable[[str], None]) -> dict[str, object]:
    """Measure every format on texts, each a title and the text itself.

    Returns:
        A JSON-ready dict: ``texts`` (title and tokens), ``formats`` rows, and what they were measured with.

    Raises:
        LabError: a text of fewer than two tokens.
    """
    length = min(WINDOW, engine.context_length)
    described, windows = [], []
    for title, text in texts:
        ids = engine.tokenizer(text, verbose=False)["input_ids"]
        if len(ids) < 2:
            raise LabError(f"{title!r} has {len(ids)} tokens; two or more are needed, one to read and one to expect.")
        described.append({"title": title, "tokens": len(ids)})
        windows += [ids[first : first + length] for first in range(0, len(ids) - 1, length)]
    rows = kv_errors(engine, windows, report)
    return {
        "target": engine.target.name,
        "dtype": engine.dtype,
        "texts": described,
        "windows": len(windows),
        "window_tokens": length,
        "scored_tokens": sum(len(ids) - 1 for ids in windows),
        "intervals": METHOD,
        "formats": [asdict(row) for row in rows],
    }


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
            came = torch.tensor(ids[start : start + len(chunk[0])], device=chunk[0].device)
            start += len(came)
            for form, log_q in zip(FORMATS, chunk, strict=True):
                nats, kl = sums[form]
                nats += surprise(log_q, came).sum().item()
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
        for i, (kept, x) in enumerate(zip(layer.read(slice(0, tokens)), (key, value), strict=True)):
            sums[0, i] += (kept.double() - x.double()).square().sum().cpu()
            sums[1, i] += x.double().square().sum().cpu()
    return sums


def _slots(tokens: int) -> int:
    size = EngineConfig().block_size
    return -(-tokens // size) * size


def format_kv(result: dict) -> str:
    """A table of ``run_kv``'s result."""
    sure = "intervals are 95%" if result["windows"] >= FEWEST else f"an interval takes {FEWEST} windows"
    titles = ", ".join(f"{text['title']} ({text['tokens']:,} tokens)" for text in result["texts"][:5])
    more = f" and {len(result['texts']) - 5} more" if len(result["texts"]) > 5 else ""
    lines = [
        f"{result['scored_tokens']:,} tokens scored in {result['windows']} windows: {titles}{more}",
        f"auto is {result['dtype']}; {sure}",
        "",
        f"{'':6}bytes a token  smaller  keys off  values off  perplexity  {'x auto':30}KL from auto, nats a token",
    ]
    for row in result["formats"]:
        ratio, kl = Interval(**row["perplexity_ratio"]), Interval(**row["kl"])
        lines.append(
            f"{row['kv_dtype']:6}{row['bytes_per_token']:13,}{row['bytes_ratio']:8.2f}x{row['key_error']:10.3%}"
            f"{row['value_error']:12.3%}{row['perplexity']:12.3f}  {ratio!s:30}{kl}"
        )
    return "\n".join(lines)
