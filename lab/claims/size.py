"""How large the cache is: arithmetic on the configurations of published models."""

from __future__ import annotations

from functools import partial

import torch

from lab.claims.claim import (
    COURSE,
    NEWSLETTER,
    TUTORIAL,
    Chart,
    Claim,
    Found,
    Number,
    Series,
    Values,
    Verdict,
    percent,
    plain,
    times,
)
from lab.claims.trial import Trial
from lab.config import KVFormat
from lab.kv_cache.formats import FORMATS, bytes_per_token
from lab.memory.model_memory import ModelInfo, known_models

TOPIC = "What the KV cache takes"
GB = 1e9
BAND = ("from", 10), ("to", 20)
CONTEXT = 4096
HALF = torch.float16


def published() -> dict[str, ModelInfo]:
    """Models with a long enough context, without the lab's own."""
    return {
        key: model
        for key, model in known_models().items()
        if model.shape.context_length >= CONTEXT and not key.startswith("stories")
    }


def token_bytes(model: ModelInfo, kv_dtype: KVFormat = "auto", kv_heads: int | None = None) -> int:
    """Bytes of one token in all layers, beside 16-bit weights."""
    shape = model.shape
    heads = kv_heads or shape.kv_heads
    return bytes_per_token(kv_dtype, layers=shape.layers, kv_heads=heads, head_dim=shape.head_dim, dtype=HALF)


# -- a share of the parameters ---------------------------------------------------------------


def shares(_: Trial) -> Found:
    models = published()
    share = {key: CONTEXT * token_bytes(model) / (2 * model.parameters) for key, model in models.items()}
    inside = sum(0.1 <= value <= 0.2 for value in share.values())
    one = models["llama-3.1-8b"]
    ten, twenty = (part * 2 * one.parameters / token_bytes(one) for part in (0.1, 0.2))
    ordered = sorted(share, key=share.__getitem__)
    names = tuple(models[key].name for key in ordered)
    series = (
        Series("share of the weights", names, tuple(100 * share[key] for key in ordered), "formula"),
        *(Series(f"claimed, {way} {part}%", names, (float(part),) * len(names), "claimed") for way, part in BAND),
    )
    return Found(
        (
            Number("models", "published models", len(models), "", "formula"),
            Number("inside", f"of which within 10-20% at {CONTEXT:,} tokens", inside, "", "formula"),
            Number("least", f"least share ({models[ordered[0]].name})", share[ordered[0]], "%", "formula"),
            Number("most", f"largest share ({models[ordered[-1]].name})", share[ordered[-1]], "%", "formula"),
            Number("ten", "Llama 3.1 8B: 10% at", ten, "tokens", "formula"),
            Number("twenty", "and 20% at", twenty, "tokens", "formula"),
        ),
        Chart("bars", f"% of the weights' bytes, {CONTEXT:,} tokens", "", series),
    )


def judge_shares(values: Values) -> Verdict:
    spread = f"from {percent(values['least'])} to {percent(values['most'])} for a text of {CONTEXT:,} tokens"
    why = f"{plain(values['inside'])} of {plain(values['models'])} models, {spread}."
    if values["inside"] == values["models"]:
        return Verdict("holds", why)
    needs = (
        "The right number of tokens: the cache grows with all tokens of all sequences, not with the parameters. For "
        f"Llama 3.1 8B that is {plain(values['ten'])} to {plain(values['twenty'])} tokens."
    )
    return Verdict("conditions" if values["inside"] else "fails", why, needs)


# -- LLaMA-2 70B -----------------------------------------------------------------------------


def seventy(claimed: float, _: Trial) -> Found:
    model = known_models()["llama-2-70b"]
    own = CONTEXT * token_bytes(model) / GB
    every = CONTEXT * token_bytes(model, kv_heads=model.shape.heads) / GB
    names = (f"{model.shape.kv_heads} KV heads, its own", f"{model.shape.heads} KV heads")
    series = (
        Series("one sequence", names, (own, every), "formula"),
        Series("claimed", names, (claimed,) * 2, "claimed"),
    )
    return Found(
        (
            Number("claimed", "as claimed", claimed, "GB", "claimed"),
            Number("own", "with its 8 KV heads (GQA), 16 bits, one sequence", own, "GB", "formula"),
            Number("every", "with a KV head for each of its 64 query heads", every, "GB", "formula"),
            Number("sequences", "sequences of that length that take as much", claimed / own, "", "formula"),
            Number("every_sequences", "the same with 64 KV heads", claimed / every, "", "formula"),
            Number("weights", "its weights, 16 bits", 2 * model.parameters / GB, "GB", "formula"),
        ),
        Chart("bars", "GB", "", series),
    )


def judge_seventy(values: Values) -> Verdict:
    own, every, claimed = values["own"], values["every"], values["claimed"]
    why = f"{own:.2f} GB with its own 8 KV heads, {every:.1f} GB if it had one for each of its 64 query heads."
    needs = f"{values['sequences']:.3g} such sequences at once"
    if values["every_sequences"] >= 1:
        needs += f", or {values['every_sequences']:.3g} of a model with 64 KV heads"
    if abs(own / claimed - 1) <= 0.25:
        return Verdict("holds", why)
    return Verdict("conditions" if abs(every / claimed - 1) <= 0.25 else "fails", why, f"{needs}.")


# -- formats ---------------------------------------------------------------------------------


def saving(kv_dtype: KVFormat, claimed: float, _: Trial) -> Found:
    models = published()
    ratios = {model.name: token_bytes(model) / token_bytes(model, kv_dtype) for model in models.values()}
    one = FORMATS[kv_dtype].vector_bytes(128, HALF)
    name, least = min(ratios.items(), key=lambda item: item[1])
    return Found(
        (
            Number("claimed", "times smaller, as claimed", claimed, "×", "claimed"),
            Number("numbers", "numbers of a head of 128 alone", 256 / one.numbers, "×", "formula"),
            Number("scales", "bytes of its scales", one.scales, "", "formula"),
            Number("least", f"with scales, least of {len(models)} models ({name})", least, "×", "formula"),
            Number("most", "largest", max(ratios.values()), "×", "formula"),
        )
    )


def judge_saving(values: Values) -> Verdict:
    low, high, claimed = values["least"], values["most"], values["claimed"]
    spread = times(low) if plain(low) == plain(high) else f"{times(low)} to {times(high)}"
    if low >= 0.9 * claimed:
        return Verdict("holds", f"{spread} with the scales counted.")
    needs = "Numbers that need no scales, or scales that more numbers share."
    if values["numbers"] >= 0.9 * claimed:
        return Verdict("conditions", f"For the numbers alone: with the scales counted it is {spread}.", needs)
    return Verdict("fails", f"{spread}, and the numbers alone {times(values['numbers'])}.", needs)


SEVENTY_RULE = (
    "Holds if one sequence takes the claimed size within 25%, by the model's own configuration. Under conditions if it "
    "does with a KV head for every query head."
)
SAVING_RULE = (
    "Holds if every model saves at least 90% of the claimed factor, scales counted. Under conditions if the numbers "
    "alone do."
)

CLAIMS = (
    Claim(
        id="memory-share",
        topic=TOPIC,
        quote="Memory usage increases by 10-20% of model parameters",
        source=NEWSLETTER,
        tested=f"The cache of one text of {CONTEXT:,} tokens over the weights' bytes, both of 16 bits, for every "
        "published model on the Memory page whose context is that long.",
        rule="Holds if all models are within 10-20%. Under conditions if some are.",
        experiment=shares,
        judge=judge_shares,
        arithmetic=True,
    ),
    Claim(
        id="seventy-80gb",
        topic=TOPIC,
        quote="For LLaMA-2 70B with a 4096-token context, that's roughly 80 GB of KV cache alone",
        source=TUTORIAL,
        tested="Layers × KV heads × 2 × head size × 2 bytes × 4,096 tokens, from its published configuration; and the "
        "article's own formula, which has a KV head for each query head.",
        rule=SEVENTY_RULE,
        experiment=partial(seventy, 80.0),
        judge=judge_seventy,
        arithmetic=True,
    ),
    Claim(
        id="seventy-4gb",
        topic=TOPIC,
        quote="a 70B model's KV cache for a 4K context is ~4GB",
        source=COURSE,
        tested="The same calculation, for LLaMA-2 70B (Llama 3.1 70B has the same layers and heads).",
        rule=SEVENTY_RULE,
        experiment=partial(seventy, 4.0),
        judge=judge_seventy,
        arithmetic=True,
    ),
    Claim(
        id="int8-halves",
        topic=TOPIC,
        quote="FP16 → INT8 gives 2x reduction.",
        source=TUTORIAL,
        tested="The same models' bytes a token, with this lab's scales: a float32 per token and KV head.",
        rule=SAVING_RULE,
        experiment=partial(saving, "int8", 2.0),
        judge=judge_saving,
        arithmetic=True,
    ),
    Claim(
        id="int4-quarters",
        topic=TOPIC,
        quote="INT4 gives 4x with slightly more quality loss.",
        source=TUTORIAL,
        tested="The same with a bfloat16 for every 32 numbers, which four bits need to keep their error small. (For "
        "the loss in quality see the claim on INT8.)",
        rule=SAVING_RULE,
        experiment=partial(saving, "int4", 4.0),
        judge=judge_saving,
        arithmetic=True,
    ),
)
