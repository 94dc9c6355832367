"""A token's operations, counted with a cache and without, and the time they take."""

from __future__ import annotations

import math
from typing import NamedTuple

from lab.claims.caching import TOPIC, both_times, step_times
from lab.claims.claim import NEWSLETTER, Claim, Found, Number, Values, Verdict, percent, plain, times
from lab.claims.trial import Trial
from lab.config import EngineConfig
from lab.engine.engine import Engine
from lab.engine.pass_cost import PassCostModel, Span
from lab.measure.scaling_fit import EXPONENTS, fit_power
from lab.memory.model_memory import known_models

BEFORE = 1000
"""Tokens before the one computed, in the article's example."""
NEAR = 3.0
"""Counts that differ by at most this factor are of the same order."""


# -- counting --------------------------------------------------------------------------------


class Operations(NamedTuple):
    """Of a pass. ``pairs``: of a query and a key it attends to, in one head of one layer."""

    flops: float
    attention_flops: float
    pairs: int


def count(engine: Engine, start: int, stop: int) -> Operations:
    """A pass over the tokens at positions ``start`` to ``stop`` - 1, as ``lab.engine.pass_cost`` counts it."""
    model = engine.target
    flops = PassCostModel(engine.backends(EngineConfig())[0], None).of([Span(start, stop, keep=1)]).flops
    pairs = sum(range(start + 1, stop + 1))
    return Operations(flops, pairs * 4 * model.layers * model.kv_heads * model.query_groups * model.head_dim, pairs)


def count_uncached(trial: Trial) -> Found:
    found = count(trial.engine("matched"), 0, BEFORE + 1)
    return Found(
        (
            Number("claimed", "operations, as claimed", BEFORE**2, "", "claimed"),
            Number("pairs", "query–key products of one head in one layer", found.pairs, "", "formula"),
            Number("flops", "FLOPs of the whole pass", found.flops / 1e9, "GFLOP", "formula"),
            Number("times", "FLOPs over the claimed number", found.flops / BEFORE**2, "×", "formula"),
            Number("share", "attention's share of the FLOPs", found.attention_flops / found.flops, "%", "formula"),
        )
    )


def judge_uncached(values: Values) -> Verdict:
    off = values["pairs"] / values["claimed"]
    if near(values["times"]):
        return Verdict("holds", f"The pass takes {times(values['times'])} the claimed number of operations.")
    needs = "An operation that means one query–key product of one head in one layer."
    if near(off):
        why = (
            f"It counts the query–key products of one head in one layer, of which there are "
            f"{plain(values['pairs'])}: a "
            f"token sees only itself and those before it. The pass takes {plain(values['flops'])} GFLOP, and "
            f"{percent(values['share'])} of them are attention's; all else grows with the length, not with its square."
        )
        return Verdict("conditions", why, needs)
    return Verdict("fails", f"One head in one layer has {plain(values['pairs'])} query–key products.", needs)


# -- and timing ------------------------------------------------------------------------------


def reduction(trial: Trial) -> Found:
    engine, measured = trial.engine("matched"), trial.once(step_times)
    cached, uncached = count(engine, BEFORE, BEFORE + 1), count(engine, 0, BEFORE + 1)
    return Found(
        (
            Number("claimed", "times fewer, as claimed", BEFORE, "×", "claimed"),
            Number("pairs", "query–key products with the cache, one head", cached.pairs, "", "formula"),
            Number("flops", "FLOPs without over with the cache", uncached.flops / cached.flops, "×", "formula"),
            Number("length", "longest text timed", measured.lengths[-1], "tokens"),
            Number("cached", "a token's time there with the cache", measured.cached[-1], "ms"),
            Number("uncached", "without", measured.uncached[-1], "ms"),
            Number.median("time", "time without over with", measured.ratios[-1], "×"),
        ),
        both_times(measured),
    )


def judge_reduction(values: Values) -> Verdict:
    flops, time, claimed = values["flops"], values["time"], values["claimed"]
    length = plain(values["length"])
    found = f"without the cache {times(flops)} the operations and {times(time)} the time, at {length} tokens"
    if near(flops / claimed) and near(time / claimed):
        return Verdict("holds", f"{found.capitalize()}.")
    needs = "A device whose time follows its operations even for a single token: one with no weights to read."
    if near(flops / claimed):
        return Verdict("conditions", f"For operations, not for time: {found}.", needs)
    return Verdict("fails", f"{found.capitalize()}.", needs)


def complexity(trial: Trial) -> Found:
    engine, measured = trial.engine("matched"), trial.once(step_times)

    def counted(cached: bool) -> float:
        one, two = (count(engine, n if cached else 0, n + 1).attention_flops for n in (BEFORE, 2 * BEFORE))
        return math.log2(two / one)

    model, large = engine.target, known_models()["llama-3.1-8b"]
    large_weights = large.parameters - large.shape.tables
    large_width = large.shape.layers * large.shape.heads * large.shape.head_dim
    # Two FLOPs per weight and token; four per number of the width and position attended to. With the cache a token
    # attends to all n positions of its text; in a text computed as a whole, to half of them on average.
    even = model.layer_weights / (model.layers * model.kv_heads * model.query_groups * model.head_dim)
    even_8b = large_weights / large_width
    numbers = [
        Number("attention_uncached", "exponent of attention's FLOPs, without the cache", counted(False), "", "formula"),
        Number("attention_cached", "exponent of attention's FLOPs, with it", counted(True), "", "formula"),
    ]
    for key, how, ms in (("uncached", "without the cache", measured.uncached), ("cached", "with it", measured.cached)):
        power = fit_power(measured.lengths, ms)
        numbers += [
            Number(key, f"exponent of a token's time, {how}", power.exponent),
            Number(f"{key}_low", f"its 95% interval, {how}, from", power.low),
            Number(f"{key}_high", f"its 95% interval, {how}, to", power.high),
            Number(f"{key}_grows", f"surely grows, {how}", power.grows),
        ]
    return Found(
        (
            *numbers,
            Number(
                "even", "without the cache, attention's FLOPs exceed the linear layers' from", even, "tokens", "formula"
            ),
            Number("even_cached", "with it, from", even / 2, "tokens", "formula"),
            Number("even_8b", "Llama 3.1 8B without the cache: from about", even_8b, "tokens", "formula"),
            Number("even_8b_cached", "with it, from about", even_8b / 2, "tokens", "formula"),
        ),
        both_times(measured),
    )


def judge_complexity(values: Values) -> Verdict:
    def is_sure(way: str, exponent: float) -> bool:
        ends = values[f"{way}_low"], values[f"{way}_high"]
        return bool(values[f"{way}_grows"]) and all(abs(end - exponent) <= 0.25 for end in ends)

    def said(way: str) -> str:
        if not values[f"{way}_grows"]:
            return "does not surely grow"
        high = values[f"{way}_high"]
        beyond = " or more" if high >= EXPONENTS[-1] else ""
        return (
            f"grows with the power {values[way]:.2f} of the length ({values[f'{way}_low']:.2f} to {high:.2f}{beyond})"
        )

    def is_odd(way: str, most: float) -> bool:
        """Whether it is surely above the power of attention's part alone."""
        return bool(values[f"{way}_grows"]) and values[f"{way}_low"] > most and not is_sure(way, most)

    found = f"a token's time, above a constant, {said('uncached')} without the cache, and {said('cached')} with it"
    if is_odd("uncached", 2) or is_odd("cached", 1):
        found += (
            ". No pass has a power above 2 without the cache, or above 1 with it: something else slowed it down, or "
            "the form does not fit (times that stay level and then rise look steeper than they are)"
        )
    if is_sure("uncached", 2) and is_sure("cached", 1):
        return Verdict("holds", f"Measured, {found}.")
    needs = (
        f"Texts far longer than {plain(values['even'])} tokens without the cache and {plain(values['even_cached'])} "
        f"with it (Llama 3.1 8B: {plain(values['even_8b'])} and {plain(values['even_8b_cached'])}), from where "
        "attention outweighs the linear layers."
    )
    if abs(values["attention_uncached"] - 2) < 0.1 and abs(values["attention_cached"] - 1) < 0.1:
        why = (
            "For attention's own operations. The linear layers', which are more up to "
            f"{plain(values['even'])} tokens without the cache and {plain(values['even_cached'])} with it, go from "
            f"O(n) to O(1). Measured, {found}."
        )
        return Verdict("conditions", why, needs)
    return Verdict("fails", f"Measured, {found}.", needs)


def near(ratio: float) -> bool:
    return 1 / NEAR <= ratio <= NEAR


CLAIMS = (
    Claim(
        id="million-operations",
        topic=TOPIC,
        quote="For a conversation with 1,000 previous tokens, the model performs 1,000 × 1,000 = 1,000,000 operations "
        "for each new word.",
        source=NEWSLETTER,
        tested="The operations of one pass over 1,001 tokens without a cache, counted from the embedded target's "
        "shape.",
        rule="Holds if the pass's FLOPs are of the claimed order (within a factor of 3). Under conditions if the "
        "query–key products of one head in one layer are.",
        experiment=count_uncached,
        judge=judge_uncached,
    ),
    Claim(
        id="thousand-operations",
        topic=TOPIC,
        quote="This reduces 1,000,000 operations down to 1,000 operations per token.",
        source=NEWSLETTER,
        tested="A thousandfold reduction: the FLOPs of a token after 1,000 others, and a token's time after almost as "
        "many, with the cache and without.",
        rule="Holds if FLOPs and time both fall by a factor within 3 times of 1,000. Under conditions if the FLOPs do.",
        experiment=reduction,
        judge=judge_reduction,
    ),
    Claim(
        id="complexity",
        topic=TOPIC,
        quote="The attention mechanism goes from O(n²) to O(n) for each new token.",
        source=NEWSLETTER,
        tested="The exponent with which attention's FLOPs, and a token's time, grow with the length: the time as a "
        "constant and a power, by least squares, with the exponent's 95% interval.",
        rule="Holds if the whole interval is within 0.25 of 2 without the cache, and of 1 with it. Under conditions "
        "if the exponents of attention's FLOPs are 2 and 1, within 0.1.",
        experiment=complexity,
        judge=judge_complexity,
    ),
)
