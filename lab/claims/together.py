"""All levers, one after another and together."""

from __future__ import annotations

import statistics
from functools import partial

from lab.bench.ladder import ladder_configs
from lab.claims.claim import (
    GAMMA,
    NEWSLETTER,
    TEXTS,
    TUTORIAL,
    Chart,
    Claim,
    Found,
    Number,
    Series,
    Values,
    Verdict,
    at_lengths,
    by_name,
    times,
)
from lab.claims.trial import Trial, passage
from lab.config import EngineConfig
from lab.measure.prompts import PROMPTS
from lab.util.messages import listed

TOPIC = "All together"
LADDER = {
    "cache": 12,
    "cache + INT8": 12,
    f"cache + speculation (gamma {GAMMA})": 28,
    "cache + paged": 45,
    f"all (gamma {GAMMA})": 52,
}
"""The article's tokens per second, by the rung's name in ``lab.bench.ladder``."""
NEAR = 0.25


# -- the ladder ------------------------------------------------------------------------------


def ladder(trial: Trial) -> Found:
    engine = trial.engine("matched")
    tokens, texts = (24, 2) if trial.small else (96, TEXTS)
    configs = {name: config for name, config in ladder_configs(GAMMA).items() if name in LADDER}
    rows = {
        f"{name}, text {place}": partial(trial.generate, engine, prompt, config, tokens)
        for place, prompt in enumerate(PROMPTS[:texts], 1)
        for name, config in configs.items()
    }
    rates = {
        row: [run.metrics.tokens_per_second for run in runs] for row, runs in trial.take_turns(rows, repeats=1).items()
    }

    def rates_of(name: str) -> list[float]:
        return [rate for row, some in rates.items() if row.startswith(f"{name}, ") for rate in some]

    base = rates_of("cache")
    ratios = {name: [rate / plain for rate, plain in zip(rates_of(name), base, strict=True)] for name in LADDER}
    numbers = [Number.median("rate", "tokens a second with the cache alone, median", base)]
    for name in list(LADDER)[1:]:
        numbers += [
            Number(f"claimed: {name}", f"{name}, as claimed", LADDER[name] / LADDER["cache"], "×", "claimed"),
            Number.median(f"measured: {name}", f"{name}, measured, median", ratios[name], "×"),
        ]
    names = tuple(LADDER)
    series = (
        Series("claimed", names, tuple(LADDER[name] / LADDER["cache"] for name in names), "claimed"),
        Series("measured", names, tuple(statistics.median(ratios[name]) for name in names)),
    )
    return Found(tuple(numbers), Chart("bars", "× the first rung", "", series))


def judge_ladder(values: Values) -> Verdict:
    claimed, measured = by_name(values, "claimed"), by_name(values, "measured")
    met = [name for name in claimed if abs(measured[name] / claimed[name] - 1) <= NEAR]
    found = "; ".join(f"{name} {times(measured[name])} for {times(claimed[name])}" for name in claimed)
    if len(met) == len(claimed):
        return Verdict("holds", f"{found}.")
    needs = (
        "A large target, whose passes are bound by reading weights, for the rung of speculation; many requests at once "
        "for that of paging, which does nothing for one. The rungs have to be measured on one load."
    )
    if 2 * len(met) >= len(claimed):
        return Verdict("conditions", f"For {' and '.join(met)}. {found}.", needs)
    return Verdict("fails", f"{found}.", needs)


# -- both ------------------------------------------------------------------------------------


def both(trial: Trial) -> Found:
    engine = trial.engine("matched")
    lengths, tokens, repeats = ((16, 48), 12, 1) if trial.small else ((16, 128, 384), 12, 3)
    configs = {
        "neither": EngineConfig(kv_cache=False),
        "cache": EngineConfig(),
        "both": EngineConfig(speculative="draft", num_speculative_tokens=GAMMA),
    }
    rows = {
        f"{name}, {length} tokens": partial(trial.generate, engine, passage(engine, length), config, tokens)
        for length in lengths
        for name, config in configs.items()
    }
    rates = {
        row: [run.metrics.tokens_per_second for run in runs] for row, runs in trial.take_turns(rows, repeats).items()
    }

    def over(way: str, other: str, length: int) -> list[float]:
        pairs = zip(*(rates[f"{name}, {length} tokens"] for name in (way, other)), strict=True)
        return [a / b for a, b in pairs]

    numbers = []
    for length in lengths:
        numbers += [
            Number.median(
                f"at_{length}", f"after {length} tokens, both over neither", over("both", "neither", length), "×"
            ),
            Number.median(f"cache: {length}", "of which the cache alone", over("cache", "neither", length), "×"),
            Number.median(f"draft: {length}", "and speculation over the cache", over("both", "cache", length), "×"),
        ]
    series = tuple(
        Series(name, tuple(lengths), tuple(statistics.median(over(way, "neither", length)) for length in lengths))
        for name, way in (("both", "both"), ("the cache alone", "cache"))
    )
    return Found(tuple(numbers), Chart("lines", "tokens before", "× as fast as with neither", series, log="xy"))


def judge_both(values: Values) -> Verdict:
    together = at_lengths(values)
    draft = by_name(values, "draft").values()
    over = [str(length) for length, ratio in together.items() if ratio > 10]
    spread = ", ".join(f"{times(ratio)} after {length}" for length, ratio in together.items())
    rest = f"Over decoding with a cache, the usual starting point, it is {times(min(draft))} to {times(max(draft))}."
    if over:
        return Verdict("holds", f"Above ×10 after {listed(over)} tokens: {spread}. {rest}")
    needs = (
        "A longer text. Without a cache every token has the whole text computed again, so the cache's part of the "
        "factor grows with the length. Speculation's part does not."
    )
    return Verdict("fails", f"At most {times(max(together.values()))}: {spread} tokens. {rest}", needs)


CLAIMS = (
    Claim(
        id="ladder",
        topic=TOPIC,
        quote="Baseline (HF, FP16, no opt) … 12 … All combined … 52 … 4.3x",
        source=TUTORIAL,
        tested="A table of tokens a second: 12, with INT8 KV 12, with speculation 28, with PagedAttention 45, with all "
        "52. Its rows begin with a plus and are read as one technique each, since all together are a row of their own. "
        "The same rungs on the embedded pair, one request at a time, greedy, in turns: ratios to the first.",
        rule=f"Holds if all four ratios are within {NEAR:.0%} of the article's. Under conditions if half of them are.",
        experiment=ladder,
        judge=judge_ladder,
    ),
    Claim(
        id="both-ten",
        topic=TOPIC,
        quote="Combined: Over 10x total speedup possible",
        source=NEWSLETTER,
        tested="Tokens a second with cache and draft over those with neither, after texts of several lengths.",
        rule="Holds if it is above ×10 after some length tried, since the claim is that it is possible; the verdict "
        "says after which. What speculation adds to decoding with a cache stands beside it.",
        experiment=both,
        judge=judge_both,
    ),
)
