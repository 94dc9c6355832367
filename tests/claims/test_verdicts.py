"""Each rule decides by its numbers: constructed ones on every side of its limits. What it says is reviewed in
``verdicts.txt``; after a change on purpose, ``UPDATE_SNAPSHOTS=1 python -m pytest tests/claims/test_verdicts.py``
writes it anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.claims import CLAIMS
from lab.claims.claim import WORDS, Findings, Number
from lab.claims.comparisons import kinds
from lab.claims.rule import ClaimResult, Rule, Value, ValueGroup
from lab.claims.speculation import fastest
from lab.measure.interval import median_interval

SNAPSHOT = Path(__file__).with_name("verdicts.txt")
KINDS = tuple(kinds())
RUNGS = ("cache + INT8", "cache + paged", "cache + speculation (gamma 5)", "all (gamma 5)")


def named(names: tuple[str, ...], numbers: dict[str, tuple[float, ...]]) -> dict[str, float]:
    return {f"{key}: {name}": value for key, some in numbers.items() for name, value in zip(names, some, strict=True)}


def by_kind(**numbers: tuple[float, ...]) -> dict[str, float]:
    """Each number for every kind of text, by its name."""
    return named(KINDS, numbers)


def by_rung(**numbers: tuple[float, ...]) -> dict[str, float]:
    return named(RUNGS, numbers)


def time_power(**ways: tuple[float, float]) -> dict[str, float]:
    """Intervals of the exponents of times, by way of decoding."""
    values: dict[str, float] = {}
    for way, (low, high) in ways.items():
        values |= {way: (low + high) / 2, f"{way}_low": low, f"{way}_high": high, f"{way}_grows": True}
    return values


UNCACHED = {"claimed": 1e6, "pairs": 501_501, "flops": 31.8, "times": 31_800.0, "share": 0.26}
FEWER = {"claimed": 1000.0, "length": 960, "flops": 756.0, "time": 90.0}
GROWTH = {
    "attention_uncached": 2.0,
    "attention_cached": 1.0,
    "even": 2880.0,
    "even_cached": 1440.0,
    "even_8b": 53_000.0,
    "even_8b_cached": 26_500.0,
}
SHARES = {"models": 14, "least": 0.01, "most": 0.4, "ten": 12_000.0, "twenty": 24_000.0}
SEVENTY = {"sequences": 3.0, "every_sequences": 0.4, "weights": 138.0}
SAVING = {"numbers": 4.0, "claimed": 4.0, "least": 3.56, "most": 3.56}
HALVED = {"numbers": 2.0, "claimed": 2.0, "most": 1.94}
LOSS = {"rise": 0.001, "kl": 0.0001, "int4_rise": 0.01, "int4_kl": 0.006}
DRAFT_TIME = {"sizes": 12.6, "cheaper": 8.0, "wide": 1.6, "gpu_cheaper": 3.9, "gpu_wide": 1.04}
HEADS = {"saving": 4.0, "unfit": 32, "whole": 60.0, "forced": 300.0, "mean": 130.0, "seventy": 8}
ACCEPTED = {"claimed_low": 0.6, "claimed_high": 0.7}
FORMULA = by_kind(said=(4.5, 3.5, 3.0, 1.0), tokens=(3.0, 2.5, 2.0, 1.0))
TWO = {"texts": 4, "same": 4, "exact": True, "tokens": 2.4, "published_low": 2.0, "published_high": 2.5}
THREE = {"three_at_tenth": 0.86, "ten_at_hundredth": 0.93, "published": 6.5, "offloaded": 9.5}
FEW = {"published_low": 1.3}
SLOW = {"published": 2.9, "offloaded": 2.9}
WHOLE = by_kind(whole=(0.5, 0.2, 0.1, 0.0))
THRESHOLD = {"rate": 0.8, "standard_rate": 0.6, "off": 0.2}
BUSY = {"busy_static": 0.6, "busy_continuous": 0.9}
MATRIX = {"tokens": 8192.0}
VERIFIED = by_kind(accepted=(0.8, 0.65, 0.5, 0.05))
BY_P = {"exact": 0.3, "control": 0.0, "rate": 0.17, "standard_rate": 0.63, "tokens": 1.2, "standard_tokens": 2.5}
DIFFERENCE = {"places": 16, "raised": 16, "clamped": 0.1, "absolute": 0.0, "control": 0.0}
STALE = {"texts": 6, "control": 6, "place": 3, "kl": 1.8, "left": 100.0}
PAGING = {"vain": 0.6, "naive": 1.9}
LADDER = by_rung(claimed=(1.0, 2.3, 3.75, 4.3))
BOTH = {"draft: 16": 0.9, "draft: 128": 1.4}

TUTORIAL = {"claimed_low": 2.0, "claimed_high": 2.8, "need_low": 0.7, "need_high": 0.84}
LINEAR = {"four": 3.0, "eight": 5.0, "most": 9.0}
DRAFTED = {"target": 128.0, "more": 0.25, "weights_gb": 2.5}
SOONER = {"claimed": 0.87, "times": 6.9, "need": 0.94}
RUNGS_GB = {"weights_gb": 138.0, "draft": 13.5, "cache": 22.0}
ROOFS = {"before": 12.0, "after": 45.0, "before_share": 0.8, "after_share": 0.76}

CASES = [
    ("tutorial-gain", TUTORIAL | {"low": 1.9, "high": 2.7}, "holds"),
    ("tutorial-gain", TUTORIAL | {"low": 1.9, "high": 2.2}, "conditions"),
    ("tutorial-gain", TUTORIAL | {"low": 1.59, "high": 1.96}, "fails"),
    ("linear-gain", LINEAR | {"sixteen": 9.8}, "holds"),
    ("linear-gain", LINEAR | {"sixteen": 8.0}, "fails"),
    ("n-for-one", {"claimed": 5.0, "tokens": 5.0, "drafted": 0.0}, "holds"),
    ("n-for-one", {"claimed": 5.0, "tokens": 6.0, "drafted": 5.0}, "fails"),
    ("fixed-overhead", DRAFTED | {"draft": 0.0}, "holds"),
    ("fixed-overhead", DRAFTED | {"draft": 32.0}, "fails"),
    ("faster-answers", SOONER | {"share": 0.872}, "holds"),
    ("faster-answers", SOONER | {"share": 0.854}, "fails"),
    ("ladder-memory", RUNGS_GB | {"below": 0.0}, "holds"),
    ("ladder-memory", RUNGS_GB | {"below": 4.0}, "fails"),
    ("ladder-paging", ROOFS | {"one": 50.0, "four": 200.0}, "holds"),
    ("ladder-paging", ROOFS | {"one": 14.8, "four": 59.0}, "conditions"),
    ("ladder-paging", ROOFS | {"one": 10.0, "four": 40.0}, "fails"),
    ("million-operations", UNCACHED | {"times": 2.9}, "holds"),
    ("million-operations", UNCACHED | {"times": 3.1}, "conditions"),
    ("million-operations", UNCACHED | {"pairs": 300_000}, "fails"),
    ("thousand-operations", FEWER | {"time": 400.0}, "holds"),
    ("thousand-operations", FEWER | {"time": 300.0}, "conditions"),
    ("thousand-operations", FEWER | {"flops": 300.0}, "fails"),
    ("complexity", GROWTH | time_power(uncached=(1.8, 2.2), cached=(0.8, 1.2)), "holds"),
    ("complexity", GROWTH | time_power(uncached=(1.1, 1.3), cached=(0.8, 1.2)), "conditions"),
    ("complexity", GROWTH | time_power(uncached=(1.8, 2.2), cached=(0.1, 1.2)), "conditions"),  # a wide interval
    ("complexity", GROWTH | time_power(uncached=(1.1, 1.3), cached=(0.1, 4)) | {"attention_uncached": 1.5}, "fails"),
    ("short-speedup", {"at_16": 1.35, "at_128": 1.55, "at_960": 90.0}, "holds"),
    ("short-speedup", {"at_16": 1.35, "at_32": 1.5, "at_128": 9.0}, "conditions"),
    ("short-speedup", {"at_16": 1.2, "at_128": 1.7}, "fails"),
    ("short-speedup", {"at_16": 1.7, "at_128": 9.0, "at_256": 1.45}, "fails"),
    ("long-speedup", {"at_16": 1.2, "at_960": 3.0}, "holds"),
    ("long-speedup", {"at_16": 3.2, "at_960": 2.9}, "conditions"),
    ("long-speedup", {"at_16": 1.2, "at_960": 2.9}, "fails"),
    ("memory-share", SHARES | {"inside": 14}, "holds"),
    ("memory-share", SHARES | {"inside": 8}, "conditions"),
    ("memory-share", SHARES | {"inside": 2}, "fails"),
    ("seventy-80gb", SEVENTY | {"claimed": 80.0, "own": 61.0, "every": 488.0}, "holds"),
    ("seventy-80gb", SEVENTY | {"claimed": 80.0, "own": 10.0, "every": 80.0}, "conditions"),
    ("seventy-80gb", SEVENTY | {"claimed": 80.0, "own": 1.34, "every": 10.7}, "fails"),
    ("seventy-4gb", SEVENTY | {"claimed": 4.0, "own": 4.9, "every": 39.0}, "holds"),
    ("seventy-4gb", SEVENTY | {"claimed": 4.0, "own": 5.1, "every": 40.0}, "fails"),
    ("int8-halves", HALVED | {"article": 1.8, "least": 1.8}, "holds"),
    ("int8-halves", HALVED | {"article": 1.79, "least": 1.8}, "conditions"),
    ("int4-quarters", SAVING | {"article": 3.6}, "holds"),
    ("int4-quarters", SAVING | {"article": 3.5}, "conditions"),
    ("int4-quarters", SAVING | {"article": 3.0, "numbers": 3.5}, "fails"),
    ("kv-heads-8", HEADS | {"loads": True, "forced_kl": 0.05, "mean_kl": 0.5}, "holds"),
    ("kv-heads-8", HEADS | {"loads": False, "forced_kl": 0.05, "mean_kl": 0.05}, "conditions"),
    ("kv-heads-8", HEADS | {"loads": True, "forced_kl": 2.0, "mean_kl": 0.5}, "fails"),
    ("int8-lossless", {"rise": 0.001, "high": 0.009, "kl": 0.009}, "holds"),
    ("int8-lossless", {"rise": 0.001, "high": 0.011, "kl": 0.001}, "conditions"),
    ("int8-lossless", {"rise": 0.011, "high": 0.012, "kl": 0.001}, "fails"),
    ("int8-speed", {"at_16": 0.91, "at_768": 1.09}, "holds"),
    ("int8-speed", {"at_16": 0.98, "at_768": 1.2}, "conditions"),
    ("int8-speed", {"at_16": 0.8, "at_768": 1.2}, "fails"),
    ("acceptance-rate", ACCEPTED | by_kind(accepted=(0.8, 0.65, 0.4, 0.0)), "fails"),
    ("speedup-formula", FORMULA | by_kind(faster=(2.9, 2.6, 1.9, 0.5)), "holds"),
    ("speedup-formula", FORMULA | by_kind(faster=(2.9, 1.2, 0.8, 0.5)), "conditions"),
    ("speedup-formula", FORMULA | by_kind(faster=(2.69, 2.25, 1.79, 1.0)), "fails"),
    ("speedup-formula", FORMULA | by_kind(said=(3.0, 2.5, 2.0, 1.0), faster=(1.5, 1.2, 0.8, 0.5)), "fails"),
    ("two-to-three", TWO | by_kind(faster=(2.5, 2.0, 2.0, 0.5), large=(2.5, 2.0, 1.2, 0.6)), "holds"),
    ("two-to-three", TWO | by_kind(faster=(1.9, 1.9, 1.0, 0.5), large=(2.5, 1.9, 1.2, 0.6)), "conditions"),
    ("two-to-three", TWO | FEW | by_kind(faster=(2.5, 1.9, 1.0, 0.5), large=(1.9,) * 4), "conditions"),
    ("two-to-three", TWO | FEW | by_kind(faster=(1.5, 1.2, 1.0, 2.5), large=(1.9,) * 4), "fails"),
    ("two-to-three", TWO | {"same": 3} | by_kind(faster=(3.0,) * 4, large=(3.0,) * 4), "fails"),
    ("two-to-three", TWO | {"same": 3, "exact": False} | by_kind(faster=(3.0,) * 4, large=(3.0,) * 4), "holds"),
    ("two-to-three", TWO | {"same": 3, "exact": False} | by_kind(faster=(1.0,) * 4, large=(3.0,) * 4), "conditions"),
    ("three-to-ten", THREE | {"published": 10.0} | VERIFIED | by_kind(faster=(3.1, 1.0, 1.0, 0.5)), "holds"),
    ("three-to-ten", THREE | VERIFIED | by_kind(faster=(10.1, 1.0, 1.0, 0.5)), "holds"),
    ("three-to-ten", THREE | VERIFIED | by_kind(faster=(1.9, 1.0, 1.0, 0.5)), "conditions"),
    ("three-to-ten", THREE | SLOW | VERIFIED | by_kind(faster=(1.9, 1.0, 1.0, 0.5)), "fails"),
    ("seven-two", {"need": 0.89} | VERIFIED, "fails"),
    ("larger-window", VERIFIED | by_kind(cheap=(6, 4, 2, 0), best=(4, 1, 2, 0)), "holds"),
    ("larger-window", VERIFIED | by_kind(cheap=(6, 4, 2, 0), best=(0, 1, 2, 0)), "conditions"),
    ("larger-window", VERIFIED | by_kind(cheap=(0, 0, 0, 0), best=(0, 2, 2, 0)), "fails"),
    ("accept-by-p", BY_P | {"rate": 0.6}, "holds"),
    ("accept-by-p", BY_P, "conditions"),
    ("accept-by-p", BY_P | {"exact": 1e-7, "rate": 0.6}, "fails"),
    ("redraw-p-minus-q", DIFFERENCE | {"raised": 0, "absolute": 0.1}, "holds"),
    ("redraw-p-minus-q", DIFFERENCE, "conditions"),
    ("redraw-p-minus-q", DIFFERENCE | {"clamped": 1e-9}, "fails"),
    ("no-rollback", STALE | {"same": 6, "stays": 1.0}, "holds"),
    ("no-rollback", STALE | {"same": 6, "stays": 1.0, "left": 0.0}, "conditions"),  # nothing rejected, so nothing shown
    ("no-rollback", STALE | {"same": 4, "stays": 0.95}, "conditions"),
    ("no-rollback", STALE | {"same": 0, "stays": 0.1}, "fails"),
    ("paged-throughput", PAGING | {"fit": 2.3, "faster": 2.0}, "holds"),
    ("paged-throughput", PAGING | {"fit": 2.3, "faster": 1.9}, "conditions"),
    ("paged-throughput", PAGING | {"fit": 1.9, "faster": 1.9, "naive": 3.0}, "conditions"),
    ("paged-throughput", PAGING | {"fit": 1.9, "faster": 1.9}, "fails"),
    ("ladder", LADDER | by_rung(measured=(1.1, 2.0, 3.0, 4.0)), "holds"),
    ("ladder", LADDER | by_rung(measured=(1.1, 2.0, 1.0, 4.0)), "conditions"),
    ("ladder", LADDER | by_rung(measured=(1.1, 2.0, 3.0, 2.0)), "fails"),
    ("both-ten", BOTH | {"at_16": 5.0, "at_128": 20.0}, "holds"),
    ("both-ten", BOTH | {"at_16": 5.0, "at_128": 9.9}, "fails"),
    ("exponential", {"short": 2.0, "long": 4.1}, "holds"),
    ("exponential", {"short": 2.04, "long": 3.3}, "fails"),
    ("int4-loss", LOSS | {"int4_high": 0.02}, "holds"),
    ("int4-loss", LOSS | {"int4_high": 0.04}, "conditions"),
    ("int4-loss", LOSS | {"int4_rise": 0.04, "int4_high": 0.05}, "fails"),
    ("draft-speed", DRAFT_TIME | {"cheaper": 12.0}, "holds"),
    ("draft-speed", DRAFT_TIME | {"gpu_cheaper": 11.0}, "conditions"),
    ("draft-speed", DRAFT_TIME, "fails"),
    ("verify-free", DRAFT_TIME | {"wide": 1.05}, "holds"),
    ("verify-free", DRAFT_TIME, "conditions"),
    ("verify-free", DRAFT_TIME | {"gpu_wide": 1.2}, "fails"),
    ("often-all", WHOLE | by_kind(whole=(0.6, 0.5, 0.1, 0.0)), "holds"),
    ("often-all", WHOLE, "conditions"),
    ("often-all", by_kind(whole=(0.3, 0.2, 0.1, 0.0)), "fails"),
    ("batch-work", {"at_1": 1.4, "at_4": 1.1, "at_16": 1.05}, "holds"),
    ("batch-work", {"at_1": 1.4, "at_4": 1.1, "at_16": 0.8}, "conditions"),
    ("batch-work", {"at_1": 0.9, "at_4": 0.8, "at_16": 0.7}, "fails"),
    ("distilled-draft", by_kind(accepted=(0.7, 0.6, 0.5, 0.1)), "fails"),
    ("quality-threshold", THRESHOLD | {"exact": 0.1}, "holds"),
    ("quality-threshold", THRESHOLD | {"exact": 0.0}, "fails"),
    ("no-waste", {"vain": 0.6, "vain_paged": 0.009}, "holds"),
    ("no-waste", {"vain": 0.6, "vain_paged": 0.05}, "conditions"),
    ("no-waste", {"vain": 0.6, "vain_paged": 0.2}, "fails"),
    ("static-batching", BUSY | {"faster": 1.6}, "holds"),
    ("static-batching", BUSY | {"faster": 1.2}, "conditions"),
    ("static-batching", BUSY | {"busy_static": 0.9, "faster": 1.0}, "fails"),
    ("priority-eviction", {"lru": 0.3, "priority": 0.6}, "holds"),
    ("priority-eviction", {"lru": 0.6, "priority": 0.6}, "fails"),
    ("flash-attention", MATRIX | {"faster": 3.0}, "holds"),
    ("flash-attention", MATRIX | {"faster": 7.5}, "conditions"),
    ("flash-attention", MATRIX | {"faster": 1.5}, "fails"),
    ("naive-pytorch", {"at_16": 12.0, "at_384": 19.0, "cache: 16": 3.0, "cache: 384": 4.0}, "holds"),
    ("naive-pytorch", {"at_16": 9.0, "at_384": 90.0, "cache: 16": 3.0, "cache: 384": 4.0}, "conditions"),
    ("naive-pytorch", {"at_16": 2.0, "at_384": 9.0, "cache: 16": 1.0, "cache: 384": 1.2}, "fails"),
    # Other reasons, and other numbers in them.
    ("long-speedup", {"at_8": 1.0, "at_64": 3.05, "at_128": 2.9, "at_512": 9.0, "at_960": 20.0}, "holds"),
    ("complexity", GROWTH | time_power(uncached=(0.8, 4.0), cached=(0.8, 1.2)), "conditions"),
    ("complexity", GROWTH | time_power(uncached=(1, 2), cached=(0.8, 1.2)) | {"uncached_grows": False}, "conditions"),
    ("complexity", GROWTH | time_power(uncached=(2.01, 3.0), cached=(0.1, 0.5)), "conditions"),
    ("complexity", GROWTH | time_power(uncached=(1.1, 1.3), cached=(0.99, 3.0)), "conditions"),
    ("speedup-formula", FORMULA | by_kind(said=(3.5, 3.5, 3.0, 1.0), faster=(1.5, 1.2, 0.8, 0.5)), "fails"),
    ("int8-halves", HALVED | {"article": 1.97, "least": 1.941}, "holds"),
    ("int8-lossless", {"rise": 0.001, "high": 0.009, "kl": 0.011}, "conditions"),
    ("int8-lossless", {"rise": 0.001, "high": 0.011, "kl": 0.02}, "conditions"),
    ("both-ten", BOTH | {"at_16": 10.1, "at_128": 20.0, "at_384": 30.0}, "holds"),
    ("paged-throughput", PAGING | {"fit": 2.3, "faster": 1.5, "naive": 3.0}, "conditions"),
]


def decide(name: str, values: dict[str, float]) -> ClaimResult:
    return CLAIMS[name].decide(values)


@pytest.mark.parametrize(("name", "values", "word"), CASES, ids=[f"{name}, {word}" for name, _, word in CASES])
def test_the_numbers_decide_the_verdict(name, values, word) -> None:
    verdict = decide(name, values)
    assert verdict.word == CLAIMS[name].decide.word(values) == CLAIMS[name].decide.called.get(word, word)
    assert verdict.why
    assert "{" not in verdict.why + verdict.needs
    assert bool(verdict.needs) == (word != "holds")
    # Numbers that could not occur together give a verdict, too, and no error.
    spread = tuple(Number(key, key, value, low=0.5 * value, high=2 * value) for key, value in values.items())
    assert CLAIMS[name].verdict(Findings(spread)).word in WORDS


def test_the_reasons_given_are_the_reviewed_ones() -> None:
    """Each number that a verdict rests on is in it, and a reason only where it is one."""
    given = []
    for name, values, _ in CASES:
        verdict = decide(name, values)
        given.append("\n".join(filter(None, (f"# {name}: {verdict.word}", verdict.why, verdict.needs))))
    text = "\n\n".join(given) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(text, "utf-8")
    assert text == SNAPSHOT.read_text("utf-8")


def test_every_rule_is_tried_on_more_than_one_side() -> None:
    words = {name: {word for claim, _, word in CASES if claim == name} for name in CLAIMS}
    undecided = [name for name, claim in CLAIMS.items() if claim.decide.holds == "False"]
    assert [name for name, some in words.items() if "holds" not in some or len(some) < 2] == undecided
    assert all(set(CLAIMS[name].decide.called.values()) == {"untested"} for name in undecided)


def test_quotes_are_a_few_words_and_the_table_is_the_one_described() -> None:
    ladder = CLAIMS["ladder"]
    for rate in ladder.experiment.keywords["claimed"].values():
        assert f" {rate}" in ladder.tested
    for name, claim in CLAIMS.items():
        assert claim.id == name
        assert ("Holds if" in claim.rule) == (claim.decide.holds != "False")
        assert len(claim.says.split()) <= 22


# -- intervals -------------------------------------------------------------------------------


def median(key: str, *measured: float) -> Number:
    sure = median_interval(measured)
    return Number(key, f"median of {key}", sure.value, "×", low=sure.low, high=sure.high)


def decided(name: str, *numbers: Number) -> ClaimResult:
    return CLAIMS[name].verdict(Findings(numbers))


@pytest.mark.parametrize(
    ("repeats", "word"),
    [
        ((0.98, 1.0, 1.02), "holds"),
        ((0.98, 1.0, 1.3), "noisy"),  # once on the other side
        ((0.89, 0.88, 0.91), "noisy"),
        ((0.7, 0.8, 0.85), "conditions"),
        ((0.5, 0.98, 0.99, 1.0, 1.0, 1.01, 1.02, 1.03, 2.0), "holds"),  # enough repeats to leave out outliers
        ((1.0,), "holds"),  # no interval
    ],
)
def test_repeats_on_both_sides_of_a_limit_give_no_verdict(repeats, word) -> None:
    """int8-speed holds from 0.9× to 1.1× after every text."""
    assert decided("int8-speed", median("at_16", *repeats), median("at_768", 1.0, 1.02, 0.99)).word == word


def test_intervals_count_together_and_only_where_they_change_the_verdict() -> None:
    wide = [median(f"at_{length}", 0.37, 1.42, 3.3) for length in (16, 768)]
    assert decided("int8-speed", *wide).word == "noisy"  # both ends are outside the limits, which lie between them
    noisy = decided("int8-speed", median("at_16", 0.98, 1.0, 1.3))
    for part in (WORDS["holds"], WORDS["fails"], "of cases"):
        assert part in noisy.why
    long = median("at_960", 4.0, 9.0, 30.0)
    assert decided("long-speedup", median("at_16", 1.0, 1.4), long).word == "holds"
    assert decided("long-speedup", long._replace(low=1.0)).word == "noisy"
    assert median("at_64", 1.0).spread == ""


def test_what_is_at_its_limit_by_chance_meets_no_claim() -> None:
    claimed = [Number(key, "", value) for key, value in ACCEPTED.items()]
    shares = [Number(f"accepted: {kind}", kind, 0.65, "%", low=0.55, high=0.75) for kind in KINDS]
    assert decided("acceptance-rate", *claimed, *shares).word == "untested"  # whatever a small pair gets
    fixed = TWO | FEW | by_kind(faster=(2.02, 1.2, 1.0, 0.5), large=(2.02, 1.5, 1.2, 0.6))
    numbers = {key: Number(key, key, value) for key, value in fixed.items()}
    assert decided("two-to-three", *numbers.values()).word == "conditions"
    greedy = f"faster: {KINDS[0]}"
    numbers[greedy] = numbers[greedy]._replace(low=1.6, high=2.5)
    assert decided("two-to-three", *numbers.values()).word == "noisy"


def test_the_fastest_window_is_given_with_those_not_surely_slower() -> None:
    rates = {0: [100, 101, 99], 1: [150, 149, 152], 2: [151, 160, 140], 4: [120, 121, 119]}
    found = fastest(rates)
    assert (found.value, found.low, found.high) == (2, 1, 2)
    assert fastest({0: [100, 101], 4: [50, 51]}).value == 0


# -- the language of rules -------------------------------------------------------------------


def test_a_group_describes_the_values_in_its_range() -> None:
    group = ValueGroup({8: Value(1), 16: Value(2), 32: Value(5)})
    group.least, group.most = 1.5, 4
    assert (group.met, group.all, group.any) == ([16], False, True)
    assert (group.low, group.high, group.best, group.start, group.end) == (1, 5, 32, 1, 5)
    assert (group.shown, group.by_length) == ("1, 2, 5", "1× after 8, 2× after 16, 5× after 32")
    assert group.settled is None
    group.most = 9
    assert group.settled == 16


def test_a_rule_sees_numbers_and_groups_and_nothing_else() -> None:
    for test in ("__import__('os')", "open('x')", "unknown > 1"):
        with pytest.raises(NameError):
            Rule(test, "", "")({"a": 1.0})
    rule = Rule(
        "double > 4",
        "{word}: {double:×}",
        "{a:%}",
        let={"double": "2 * a"},
        words={"word": [["a > 9", "large"], ["", "small"]]},
    )
    assert rule({"a": 3.0}) == ClaimResult("holds", "small: 6×")
    assert rule({"a": 0.5}) == ClaimResult("fails", "small: 1×", "50%")
