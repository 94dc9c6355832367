"""What INT8 keys and values cost in quality, and do to speed."""

from __future__ import annotations

import statistics
from functools import partial

from lab.claims.claim import TUTORIAL, Chart, Claim, Found, Number, Series, Values, Verdict, at_lengths, percent, times
from lab.claims.trial import Trial, passage
from lab.config import EngineConfig, SamplingParams
from lab.measure.difference import common_length
from lab.measure.interval import MIN_SAMPLES
from lab.measure.kv_error import kv_errors
from lab.measure.measuring import finish
from lab.measure.prompts import held_out_prompts
from lab.measure.workload import PlannedRequest
from lab.trace.events import StepTimed

TOPIC = "What the KV cache takes"
INT8 = EngineConfig(kv_dtype="int8")


# -- quality ---------------------------------------------------------------------------------


def quality(trial: Trial) -> Found:
    """Reads held-out beginnings, each continued by the target, with every format; and compares greedy texts."""
    engine = trial.engine("matched")
    prompts = held_out_prompts()[: MIN_SAMPLES if trial.small else 12]
    tokens = 24 if trial.small else 160
    jobs = [
        PlannedRequest(prompt, SamplingParams(max_tokens=tokens, temperature=1.0, seed=i, ignore_eos=True))
        for i, prompt in enumerate(prompts)
    ]
    trial.report("writing texts")
    runs, _ = trial.measure(lambda: finish(engine, jobs, EngineConfig(paged=True)))
    windows = [[*run.prompt_token_ids, *run.token_ids] for run in runs]
    trial.report("reading them with every format")
    _, int8, int4 = trial.measure(lambda: kv_errors(engine, windows, lambda line: None))

    same = []
    for done, prompt in enumerate(prompts, 1):
        trial.report(f"greedy text {done} of {len(prompts)}")
        native, quantised = (
            trial.measure(partial(trial.generate, engine, prompt, config, tokens)).token_ids
            for config in (EngineConfig(), INT8)
        )
        same.append(common_length(native, quantised))
    rise = int8.perplexity_ratio.map(lambda ratio: ratio - 1)
    return Found(
        (
            Number("rise", "perplexity changes by", rise.value, "%"),
            Number("high", "upper end of its 95% interval", rise.high, "%"),
            Number("kl", "divergence from native", int8.kl.value, "nats"),
            Number("off", "keys off by", int8.key_error, "%"),
            Number(
                "same", f"greedy texts of {tokens} tokens that stay the same, of {len(prompts)}", same.count(tokens)
            ),
            Number("int4_rise", "INT4, perplexity changes by", int4.perplexity_ratio.value - 1, "%"),
            Number("int4_kl", "INT4, divergence", int4.kl.value, "nats"),
        )
    )


def judge_quality(values: Values) -> Verdict:
    found = f"Perplexity changes by {percent(values['rise'])}, divergence {values['kl']:.2g} nats a token"
    if values["high"] < 0.01 and values["kl"] < 0.01:
        return Verdict("holds", f"{found}.")
    needs = "A scale for fewer numbers, or more texts to be sure."
    if values["rise"] < 0.01:
        reasons = {
            "the change is not sure to be below 1%": values["high"] >= 0.01,
            "the divergence is not below 0.01 nats": values["kl"] >= 0.01,
        }
        return Verdict("conditions", f"{found}; {', and '.join(why for why, so in reasons.items() if so)}.", needs)
    return Verdict("fails", f"{found}.", needs)


# -- speed -----------------------------------------------------------------------------------


def speed(trial: Trial) -> Found:
    engine = trial.engine("matched")
    lengths, tokens, repeats = ((16, 64), 16, 2) if trial.small else ((16, 384, 768), 64, 5)
    configs = {"native": EngineConfig(), "INT8": INT8}
    rows = {
        f"{name}, {length} tokens": partial(trial.generate, engine, passage(engine, length), config, tokens)
        for length in lengths
        for name, config in configs.items()
    }
    runs = trial.take_turns(rows, repeats)
    numbers, medians = [Number("claimed", "speed, as claimed", 1.0, "×", "claimed")], []
    for length in lengths:
        native, int8 = (runs[f"{name}, {length} tokens"] for name in configs)
        rates = [[run.metrics.tokens_per_second for run in some] for some in (int8, native)]
        ratios = [a / b for a, b in zip(*rates, strict=True)]
        last = [event for event in native[0].events if isinstance(event, StepTimed)][-1]
        numbers += [
            Number.median(f"at_{length}", f"INT8 over native after {length} tokens, median", ratios, "×"),
            Number(
                f"share_{length}",
                f"the cache's share of what a pass reads, {length} tokens",
                last.kv_used_bytes / last.verify_bytes,
                "%",
                "formula",
            ),
        ]
        medians.append(statistics.median(ratios))
    series = (
        Series("claimed", lengths, (1.0,) * len(lengths), "claimed"),
        Series("INT8 over native", lengths, tuple(medians)),
    )
    return Found(tuple(numbers), Chart("lines", "tokens before", "× as fast as native", series))


def judge_speed(values: Values) -> Verdict:
    ratios = at_lengths(values)
    found = ", ".join(f"{times(ratio)} after {length}" for length, ratio in ratios.items())
    met = [length for length, ratio in ratios.items() if 0.9 <= ratio <= 1.1]
    if len(met) == len(ratios):
        return Verdict("holds", f"{found} tokens.")
    needs = (
        "A cache that is a small share of what a pass reads. Where it is a large one, fewer bytes are read faster; "
        "where they have to be dequantised first, it may be slower."
    )
    if met:
        return Verdict("conditions", f"After {' and '.join(map(str, met))} tokens only: {found} tokens.", needs)
    return Verdict("fails", f"{found} tokens.", needs)


CLAIMS = (
    Claim(
        id="int8-lossless",
        topic=TOPIC,
        quote="For most generative tasks, INT8 is nearly lossless.",
        source=TUTORIAL,
        tested="How surprised the target is by its own continuations of beginnings it was not trained on, and how far "
        "its distributions move, with INT8 keys and values.",
        rule="Holds if perplexity rises by less than 1%, at the upper end of its 95% interval, and the divergence is "
        "below 0.01 nats a token. Under conditions if the rise itself is below 1%.",
        experiment=quality,
        judge=judge_quality,
    ),
    Claim(
        id="int8-speed",
        topic=TOPIC,
        quote="+ INT8 KV cache … 1.0x (memory only)",
        source=TUTORIAL,
        tested="Tokens a second with INT8 over those with native keys and values, after texts of several lengths, in "
        "turns.",
        rule="Holds if the median ratio is within ×0.9 to ×1.1 after every text. Under conditions if it is after some.",
        experiment=speed,
        judge=judge_speed,
    ),
)
