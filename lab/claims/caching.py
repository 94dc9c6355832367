"""A token's time by the length of the text, with and without a cache: what the cache gains."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from lab.claims.claim import NEWSLETTER, Chart, Claim, Found, Number, Series, Values, Verdict, at_lengths, times
from lab.claims.trial import Trial, passage
from lab.config import EngineConfig
from lab.measure.scaling_fit import CACHED, UNCACHED, curve

TOPIC = "What the KV cache saves"
LENGTHS = (8, 16, 32, 64, 128, 256, 512, 960)
SHORT = 128
"""Tokens of a text that still counts as short."""


class Times(NamedTuple):
    """Milliseconds per token by length in tokens, medians. ``ratios``: without a cache over with it, by repeat."""

    lengths: tuple[int, ...]
    cached: tuple[float, ...]
    uncached: tuple[float, ...]
    ratios: tuple[tuple[float, ...], ...]


def step_times(trial: Trial) -> Times:
    """A token's time after texts of several lengths. Raises Stopped, LabError."""
    engine = trial.engine("matched")
    lengths, steps, repeats = ((16, 32, 48, 72, 96), 3, 1) if trial.small else (LENGTHS, 4, 3)
    blocks = -(-engine.context_length // EngineConfig.block_size)
    configs = {CACHED: EngineConfig(num_blocks=blocks), UNCACHED: EngineConfig(kv_cache=False)}

    def step_ms(prompt: str, config: EngineConfig) -> float:
        return statistics.median(curve(trial.generate(engine, prompt, config, steps + 1)).ms)

    rows: dict[str, Callable[[], float]] = {}
    for length in lengths:
        prompt = passage(engine, length)
        rows |= {f"{length} tokens, {how}": partial(step_ms, prompt, config) for how, config in configs.items()}
    ms = trial.take_turns(rows, repeats)
    cached, uncached = ([ms[f"{length} tokens, {how}"] for length in lengths] for how in configs)
    ratios = tuple(
        tuple(slow / fast for slow, fast in zip(*both, strict=True)) for both in zip(uncached, cached, strict=True)
    )
    return Times(lengths, *(tuple(map(statistics.median, some)) for some in (cached, uncached)), ratios)


def both_times(measured: Times) -> Chart:
    series = tuple(
        Series(name, measured.lengths, ms) for name, ms in ((UNCACHED, measured.uncached), (CACHED, measured.cached))
    )
    return Chart("lines", "tokens so far", "ms a token", series, log="xy")


def speedups(trial: Trial) -> Found:
    measured = trial.once(step_times)
    numbers = tuple(
        Number.median(f"at_{length}", f"speed-up at {length} tokens", ratios, "×")
        for length, ratios in zip(measured.lengths, measured.ratios, strict=True)
    )
    series = Series("speed-up", measured.lengths, tuple(number.value for number in numbers))
    return Found(numbers, Chart("lines", "tokens so far", "× as fast with the cache", (series,), log="xy"))


def judge_short(values: Values) -> Verdict:
    by_length = {length: ratio for length, ratio in at_lengths(values).items() if length <= SHORT}
    low, high = min(by_length.values()), max(by_length.values())
    found = f"{times(low)} to {times(high)} between {min(by_length)} and {max(by_length)} tokens"
    inside = [length for length, ratio in by_length.items() if 1.3 <= ratio <= 1.6]
    if len(inside) == len(by_length):
        return Verdict("holds", f"{found}.")
    needs = "A text short enough, or a device on which a few dozen tokens take barely longer than one."
    if inside:
        return Verdict("conditions", f"At {', '.join(map(str, inside))} tokens. In all: {found}.", needs)
    if low < 1.3 and high > 1.6:
        return Verdict("conditions", f"At one length in passing: {found}.", needs)
    return Verdict("fails", f"{found}.", needs)


def judge_long(values: Values) -> Verdict:
    by_length = at_lengths(values)
    longest = max(by_length)
    reached = [length for length, ratio in by_length.items() if ratio >= 3]
    below = [length for length in by_length if length not in reached]
    needs = "A longer text: without a cache a token's time grows with its length."
    if by_length[longest] >= 3:
        stays = min(length for length in reached if length > max(below, default=0))
        return Verdict("holds", f"{times(by_length[longest])} at {longest} tokens, three times from {stays} on.")
    if reached:
        return Verdict("conditions", f"At {', '.join(map(str, reached))} tokens only.", needs)
    return Verdict("fails", f"At most {times(max(by_length.values()))}, at up to {longest} tokens.", needs)


CLAIMS = (
    Claim(
        id="short-speedup",
        topic=TOPIC,
        quote="Short sequences see 40-50% speedups.",
        source=NEWSLETTER,
        tested=f"A token's time without the cache over that with it, after texts of up to {SHORT} tokens. The "
        "claim is read as ×1.4 to ×1.5 the tokens a second. Read as 40-50% less time it would be ×1.67 to ×2, which is "
        "not judged here.",
        rule="Holds if every speed-up is ×1.3 to ×1.6 (the claim and 0.1 either side). Under conditions if one is, "
        "or if they pass through that range.",
        experiment=speedups,
        judge=judge_short,
    ),
    Claim(
        id="long-speedup",
        topic=TOPIC,
        quote="Long conversations with thousands of tokens can be 3x faster or more.",
        source=NEWSLETTER,
        tested="The same up to 960 tokens, all but the end of the embedded target's context.",
        rule="Holds if the speed-up at the longest text is at least ×3. Under conditions if it is at another.",
        experiment=speedups,
        judge=judge_long,
    ),
)
