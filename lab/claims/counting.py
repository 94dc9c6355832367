"""Counted, not timed: operations of a pass from the model's shape, sizes of caches from published models, and what
follows from an article's numbers by arithmetic."""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from lab.claims.claim import ClaimChart, Figures, Series
from lab.claims.comparisons import cache_times
from lab.claims.rule import evaluate
from lab.claims.trial import Trial
from lab.config import EngineConfig, KVFormat
from lab.engine.adaptive_window import tokens_per_round
from lab.engine.engine import Engine
from lab.engine.pass_cost import PassCostModel, Span
from lab.kv_cache.storage import FORMATS, bytes_per_token
from lab.measure.interval import median_interval
from lab.measure.reference import FOLDER
from lab.measure.scaling_fit import fit_power
from lab.measure.theory import needed_acceptance, speedup
from lab.memory.capacity import Deployment, Lengths
from lab.memory.catalogue import GiB
from lab.memory.model_memory import ModelInfo, known_models

HALF = torch.float16
GB = 1e9
Sweep = Mapping[str, Any]
"""Of ``cache_times``."""


class Operations(NamedTuple):
    """Of a pass. ``pairs``: of a query and a key it attends to, in one head of one layer."""

    flops: float
    attention_flops: float
    pairs: int


def width(engine: Engine) -> int:
    """Numbers that a token's queries have in all layers."""
    model = engine.target
    return model.layers * model.kv_heads * model.query_groups * model.head_dim


def count(engine: Engine, start: int, stop: int) -> Operations:
    """A pass over the tokens at positions ``start`` to ``stop`` - 1, as ``lab.engine.pass_cost`` counts it."""
    flops = PassCostModel(engine.backends(EngineConfig())[0], None).of([Span(start, stop, keep=1)]).flops
    pairs = sum(range(start + 1, stop + 1))
    return Operations(flops, pairs * 4 * width(engine), pairs)


def uncached_pass(trial: Trial, *, before: int) -> Figures:
    found = count(trial.engine("matched"), 0, before + 1)
    values = {"claimed": before**2, "pairs": found.pairs, "flops": found.flops / 1e9}
    return Figures(values | {"times": found.flops / before**2, "share": found.attention_flops / found.flops})


def reduction(trial: Trial, *, before: int, **sweep: Sweep) -> Figures:
    engine, measured = trial.engine("matched"), trial.once(cache_times, **sweep)
    cached, uncached = count(engine, before, before + 1), count(engine, 0, before + 1)
    return Figures(
        {
            "claimed": before,
            "pairs": cached.pairs,
            "flops": uncached.flops / cached.flops,
            "length": measured.lengths[-1],
            "cached": measured.cached[-1],
            "uncached": measured.uncached[-1],
            "time": median_interval(measured.ratios[-1]),
        },
        measured.chart,
    )


def complexity(trial: Trial, *, before: int, **sweep: Sweep) -> Figures:
    """Exponents of the growth with the length: of attention's FLOPs, counted, and of a token's time, fitted."""
    engine, measured = trial.engine("matched"), trial.once(cache_times, **sweep)

    def exponent(cached: bool) -> float:
        one, two = (count(engine, n if cached else 0, n + 1).attention_flops for n in (before, 2 * before))
        return math.log2(two / one)

    values = {"attention_uncached": exponent(False), "attention_cached": exponent(True)}
    for key, ms in (("uncached", measured.uncached), ("cached", measured.cached)):
        power = fit_power(measured.lengths, ms)
        ends = {f"{key}_low": power.low, f"{key}_high": power.high, f"{key}_grows": power.grows}
        values |= {key: power.exponent, **ends}
    # Two FLOPs per weight and token; four per number of the width and position attended to. With the cache a token
    # attends to all n positions of its text; in a text computed as a whole, to half of them on average.
    large = known_models()["llama-3.1-8b"]
    even = engine.target.layer_weights / width(engine)
    even_8b = (large.parameters - large.shape.tables) / (large.shape.layers * large.shape.heads * large.shape.head_dim)
    values |= {"even": even, "even_cached": even / 2, "even_8b": even_8b, "even_8b_cached": even_8b / 2}
    return Figures(values, measured.chart)


# -- sizes -----------------------------------------------------------------------------------


def published(context: int) -> dict[str, ModelInfo]:
    """Models with a long enough context, without the lab's own."""
    return {
        key: model
        for key, model in known_models().items()
        if model.shape.context_length >= context and not key.startswith("stories")
    }


def token_bytes(model: ModelInfo, kv_dtype: KVFormat = "auto", kv_heads: int | None = None) -> int:
    """Bytes of one token in all layers, beside 16-bit weights."""
    shape = model.shape
    heads = kv_heads or shape.kv_heads
    return bytes_per_token(kv_dtype, layers=shape.layers, kv_heads=heads, head_dim=shape.head_dim, dtype=HALF)


def text_bytes(model: ModelInfo, tokens: int) -> float:
    """Bytes that a text keeps, beside 16-bit weights: in layers with a window what it shows, and a recurrent state."""
    sizes = {"shape": model.shape, "parameters": model.parameters, "state_bytes": model.state_bytes}
    return Deployment(**sizes, memory=GiB, lengths=Lengths(tokens, tokens)).sequence_bytes(tokens)


def weight_shares(_: Trial, *, context: int, low: float, high: float) -> Figures:
    """The cache of one text over the weights' bytes, for every published model."""
    models = published(context)
    share = {key: text_bytes(model, context) / (2 * model.parameters) for key, model in models.items()}
    one = models["llama-3.1-8b"]
    ten, twenty = (part * 2 * one.parameters / token_bytes(one) for part in (low, high))
    ordered = sorted(share, key=share.__getitem__)
    least, *_, most = ordered
    names = tuple(models[key].name for key in ordered)
    series = (
        Series("share of the weights", names, tuple(100 * share[key] for key in ordered), "formula"),
        *(
            Series(f"claimed, {way} {100 * part:g}%", names, (100 * part,) * len(names), "claimed")
            for way, part in (("from", low), ("to", high))
        ),
    )
    values = {
        "models": len(models),
        "inside": sum(low <= value <= high for value in share.values()),
        "least": share[least],
        "most": share[most],
        "ten": ten,
        "twenty": twenty,
    }
    chart = ClaimChart("bars", f"% of the weights' bytes, {context:,} tokens", "", series)
    return Figures(values, chart, {"least": models[least].name, "most": models[most].name})


def cache_size(_: Trial, *, model: str, context: int, gigabytes: float) -> Figures:
    """A model's cache of one text, with its own KV heads and with one for each query head."""
    one = known_models()[model]
    own = context * token_bytes(one) / GB
    every = context * token_bytes(one, kv_heads=one.shape.heads) / GB
    names = (f"{one.shape.kv_heads} KV heads, its own", f"{one.shape.heads} KV heads")
    series = (
        Series("one sequence", names, (own, every), "formula"),
        Series("claimed", names, (gigabytes,) * 2, "claimed"),
    )
    values = {"claimed": gigabytes, "own": own, "every": every}
    values |= {"sequences": gigabytes / own, "every_sequences": gigabytes / every}
    return Figures(values | {"weights": 2 * one.parameters / GB}, ClaimChart("bars", "GB", "", series))


def format_saving(_: Trial, *, kv_dtype: KVFormat, context: int, factor: float) -> Figures:
    """A format's bytes per token under those of 16 bits, for every published model; and with the article's scales, one
    of 16 bits per token and head."""
    models = published(context)
    ratios = {model.name: token_bytes(model) / token_bytes(model, kv_dtype) for model in models.values()}
    one = FORMATS[kv_dtype].vector_bytes(128, HALF)
    name = min(ratios, key=ratios.__getitem__)
    values = {"claimed": factor, "numbers": 256 / one.numbers, "article": 256 / (one.numbers + HALF.itemsize)}
    values |= {"scales": one.scales, "least": ratios[name]}
    return Figures(values | {"most": max(ratios.values())}, words={"models": len(models), "name": name})


# -- numbers of an article, and what follows from them ------------------------------------------


def attention_flops(key: str, tokens: int) -> float:
    """FLOPs of a published model's attention in a pass over a text of so many tokens."""
    shape = known_models()[key].shape
    return 4 * shape.layers * shape.heads * shape.head_dim * tokens * (tokens + 1) / 2


def pass_flops(key: str, tokens: int) -> float:
    """The same of the whole pass: two per weight and token, and attention's."""
    model = known_models()[key]
    return 2 * (model.parameters - model.shape.tables) * tokens + attention_flops(key, tokens)


NAMES = {
    "speedup": speedup,
    "needed": needed_acceptance,
    "tokens_per_round": tokens_per_round,
    "weights": lambda key: 2 * known_models()[key].parameters,
    "kv": lambda key: token_bytes(known_models()[key]),
    "flops": pass_flops,
    "attention": attention_flops,
}
"""What formulas may call: theorem 3.8 and the acceptance it takes, equation 1, a published model's bytes in 16 bits,
and the FLOPs of a pass and of its attention."""


def derived(_: Trial, *, values: Mapping[str, float], formulas: Mapping[str, str]) -> Figures:
    """``values`` as claimed, and ``formulas`` over them and the formulas before, as in rules."""
    found = dict(values)
    for key, formula in formulas.items():
        found[key] = evaluate(formula, NAMES | found)
    return Figures(found)


def recorded_part(machine: str, part: str) -> dict[str, Any]:
    """A part of the record of a GPU, as ``python -m lab.bench gpu`` measured it."""
    record = json.loads((FOLDER / f"gpu-{machine}.json").read_text("utf-8"))
    return record["parts"][part]["result"]


def recorded_prefill(_: Trial, *, machine: str) -> Figures:
    """Milliseconds of a long prompt by torch's kinds of attention, from the record of a GPU."""
    rows = recorded_part(machine, "2")["prefill"]
    slow, fast = (rows[name]["milliseconds"] for name in ("math", "flash"))
    return Figures({"tokens": rows["flash"]["tokens"], "math": slow, "flash": fast, "faster": slow / fast})
