"""Each rule decides by its numbers: constructed ones on every side of its limits."""

from __future__ import annotations

import math
import re

import pytest

from lab.claims import CLAIMS
from lab.claims.claim import WORDS, Found, Number, Verdict, plain
from lab.claims.together import LADDER as TABLE
from lab.claims.windows import fastest

KINDS = ("stories (greedy)", "stories (temperature 0.8)", "code (temperature 1.5)", "stories (wrong draft)")


def by_kind(**numbers: tuple[float, ...]) -> dict[str, float]:
    """Each number for every kind of text, by its name."""
    return {f"{what}: {kind}": value for what, some in numbers.items() for kind, value in zip(KINDS, some, strict=True)}


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
SEVENTY = {"sequences": 3.0, "every_sequences": 0.4}
SAVING = {"numbers": 4.0, "claimed": 4.0, "most": 3.9}
HEADS = {"saving": 4.0, "unfit": 32, "whole": 60.0, "forced": 300.0, "mean": 130.0, "seventy": 8}
ACCEPTED = {"claimed_low": 0.6, "claimed_high": 0.7}
FORMULA = by_kind(said=(4.5, 3.5, 3.0, 1.0), tokens=(3.0, 2.5, 2.0, 1.0))
TWO = {"texts": 4, "same": 4, "exact": True}
THREE = {"need_3_0.1": 0.86, "need_10_0.01": 0.93}
JUDGED = by_kind(accepted=(0.8, 0.65, 0.5, 0.05))
BY_P = {"exact": 0.3, "control": 0.0, "kept": 0.17, "standard_kept": 0.63, "tokens": 1.2, "standard_tokens": 2.5}
DIFFERENCE = {"places": 16, "raised": 16, "clamped": 0.1, "absolute": 0.0, "control": 0.0}
STALE = {"texts": 6, "control": 6, "place": 3, "kl": 1.8, "left": 100.0}
PAGING = {"vain": 0.6, "naive": 1.9}
LADDER = {f"claimed: {rung}": ratio for rung, ratio in zip("abcd", (1.0, 2.3, 3.75, 4.3), strict=True)}
BOTH = {"draft: 16": 0.9, "draft: 128": 1.4}

CASES = [
    ("million-operations", UNCACHED | {"times": 2.9}, "holds"),
    ("million-operations", UNCACHED | {"times": 3.1}, "conditions"),
    ("million-operations", UNCACHED | {"pairs": 300_000}, "fails"),
    ("thousand-operations", FEWER | {"time": 400.0}, "holds"),
    ("thousand-operations", FEWER | {"time": 300.0}, "conditions"),
    ("thousand-operations", FEWER | {"flops": 300.0}, "fails"),
    ("complexity", GROWTH | time_power(uncached=(1.8, 2.2), cached=(0.8, 1.2)), "holds"),
    ("complexity", GROWTH | time_power(uncached=(1.1, 1.3), cached=(0.8, 1.2)), "conditions"),
    ("complexity", GROWTH | time_power(uncached=(1.8, 2.2), cached=(0.1, 1.2)), "conditions"),  # a wide interval
    ("complexity", GROWTH | time_power(uncached=(1.8, 2.2), cached=(0.8, 1.2)) | {"cached_grows": False}, "conditions"),
    ("complexity", GROWTH | time_power(uncached=(1.1, 1.3), cached=(0.1, 4)) | {"attention_uncached": 1.5}, "fails"),
    ("short-speedup", {"at_16": 1.35, "at_128": 1.55, "at_960": 90.0}, "holds"),
    ("short-speedup", {"at_16": 1.35, "at_128": 9.0}, "conditions"),
    ("short-speedup", {"at_16": 1.2, "at_128": 1.7}, "conditions"),
    ("short-speedup", {"at_16": 1.2, "at_128": 1.25}, "fails"),
    ("short-speedup", {"at_16": 1.7, "at_128": 9.0, "at_256": 1.45}, "fails"),
    ("long-speedup", {"at_16": 1.2, "at_960": 3.0}, "holds"),
    ("long-speedup", {"at_16": 3.2, "at_960": 2.9}, "conditions"),
    ("long-speedup", {"at_16": 1.2, "at_960": 2.9}, "fails"),
    ("memory-share", SHARES | {"inside": 14}, "holds"),
    ("memory-share", SHARES | {"inside": 1}, "conditions"),
    ("memory-share", SHARES | {"inside": 0}, "fails"),
    ("seventy-80gb", SEVENTY | {"claimed": 80.0, "own": 61.0, "every": 488.0}, "holds"),
    ("seventy-80gb", SEVENTY | {"claimed": 80.0, "own": 10.0, "every": 80.0}, "conditions"),
    ("seventy-80gb", SEVENTY | {"claimed": 80.0, "own": 1.34, "every": 10.7}, "fails"),
    ("seventy-80gb", SEVENTY | {"claimed": 80.0, "own": 7.2, "every": 58.0}, "fails"),
    ("seventy-4gb", SEVENTY | {"claimed": 4.0, "own": 4.9, "every": 39.0}, "holds"),
    ("seventy-4gb", SEVENTY | {"claimed": 4.0, "own": 5.1, "every": 40.0}, "fails"),
    ("int8-halves", {"numbers": 2.0, "claimed": 2.0, "most": 1.94, "least": 1.8}, "holds"),
    ("int8-halves", {"numbers": 2.0, "claimed": 2.0, "most": 1.94, "least": 1.79}, "conditions"),
    ("int4-quarters", SAVING | {"least": 3.6}, "holds"),
    ("int4-quarters", SAVING | {"least": 3.56}, "conditions"),
    ("int4-quarters", SAVING | {"least": 3.0, "numbers": 3.5}, "fails"),
    ("kv-heads-8", HEADS | {"loads": True, "forced_kl": 0.05, "mean_kl": 0.5}, "holds"),
    ("kv-heads-8", HEADS | {"loads": False, "forced_kl": 0.05, "mean_kl": 0.05}, "conditions"),
    ("kv-heads-8", HEADS | {"loads": True, "forced_kl": 2.0, "mean_kl": 0.5}, "fails"),
    ("int8-lossless", {"rise": 0.001, "high": 0.009, "kl": 0.009}, "holds"),
    ("int8-lossless", {"rise": 0.001, "high": 0.011, "kl": 0.001}, "conditions"),
    ("int8-lossless", {"rise": 0.001, "high": 0.009, "kl": 0.011}, "conditions"),
    ("int8-lossless", {"rise": 0.011, "high": 0.012, "kl": 0.001}, "fails"),
    ("int8-speed", {"at_16": 0.91, "at_768": 1.09}, "holds"),
    ("int8-speed", {"at_16": 0.98, "at_768": 1.2}, "conditions"),
    ("int8-speed", {"at_16": 0.8, "at_768": 1.2}, "fails"),
    ("acceptance-rate", ACCEPTED | by_kind(accepted=(0.7, 0.65, 0.62, 0.0)), "holds"),  # whatever the wrong draft does
    ("acceptance-rate", ACCEPTED | by_kind(accepted=(0.8, 0.65, 0.4, 0.0)), "conditions"),
    ("acceptance-rate", ACCEPTED | by_kind(accepted=(0.8, 0.8, 0.4, 0.0)), "conditions"),
    ("acceptance-rate", ACCEPTED | by_kind(accepted=(0.4, 0.4, 0.4, 0.65)), "fails"),
    ("acceptance-rate", ACCEPTED | by_kind(accepted=(0.8, 0.8, 0.8, 0.0)), "fails"),
    ("speedup-formula", FORMULA | by_kind(faster=(2.9, 2.6, 1.9, 0.5)), "holds"),
    ("speedup-formula", FORMULA | by_kind(faster=(2.9, 1.2, 0.8, 0.5)), "conditions"),
    ("speedup-formula", FORMULA | by_kind(faster=(2.69, 2.25, 1.79, 1.0)), "fails"),
    ("speedup-formula", FORMULA | by_kind(faster=(3.4, 2.8, 2.25, 1.0)), "fails"),
    ("speedup-formula", FORMULA | by_kind(said=(3.0, 2.5, 2.0, 1.0), faster=(1.5, 1.2, 0.8, 0.5)), "fails"),
    ("two-to-three", TWO | by_kind(faster=(2.5, 2.0, 1.0, 0.5), large=(2.5, 2.0, 1.2, 0.6)), "holds"),
    ("two-to-three", TWO | by_kind(faster=(2.5, 1.9, 1.0, 0.5), large=(2.5, 1.9, 1.2, 0.6)), "conditions"),
    ("two-to-three", TWO | by_kind(faster=(1.5, 1.2, 1.0, 0.5), large=(1.9, 1.5, 1.2, 0.6)), "fails"),
    ("two-to-three", TWO | {"same": 3} | by_kind(faster=(3.0,) * 4, large=(3.0,) * 4), "fails"),
    ("two-to-three", TWO | {"same": 3, "exact": False} | by_kind(faster=(3.0,) * 4, large=(3.0,) * 4), "holds"),
    ("two-to-three", TWO | {"same": 3, "exact": False} | by_kind(faster=(1.0,) * 4, large=(3.0,) * 4), "conditions"),
    ("three-to-ten", THREE | JUDGED | by_kind(faster=(3.1, 1.0, 1.0, 0.5)), "holds"),
    (
        "three-to-ten",
        THREE | by_kind(accepted=(0.87, 0.6, 0.5, 0.0), faster=(1.9, 1.0, 1.0, 0.5)),
        "conditions",
    ),
    ("three-to-ten", THREE | JUDGED | by_kind(faster=(1.9, 1.0, 1.0, 0.5)), "fails"),
    ("seven-two", {"need": 0.64} | JUDGED, "holds"),
    ("seven-two", {"need": 0.7} | JUDGED, "conditions"),
    ("seven-two", {"need": 0.89} | JUDGED, "fails"),
    ("larger-window", JUDGED | by_kind(best=(4, 2, 2, 0)), "holds"),
    ("larger-window", JUDGED | by_kind(best=(2, 2, 2, 0)), "holds"),
    ("larger-window", JUDGED | by_kind(best=(4, 1, 2, 0)), "conditions"),
    ("larger-window", JUDGED | by_kind(best=(2, 1, 2, 0)), "conditions"),
    ("larger-window", JUDGED | by_kind(best=(2, 2, 0, 1)), "conditions"),
    ("larger-window", JUDGED | by_kind(best=(2, 4, 2, 2)), "fails"),
    ("accept-by-p", BY_P | {"kept": 0.6}, "holds"),
    ("accept-by-p", BY_P, "conditions"),
    ("accept-by-p", BY_P | {"exact": 1e-7, "kept": 0.6}, "fails"),
    ("redraw-p-minus-q", DIFFERENCE | {"raised": 0, "absolute": 0.1}, "holds"),
    ("redraw-p-minus-q", DIFFERENCE, "conditions"),
    ("redraw-p-minus-q", DIFFERENCE | {"raised": 0}, "conditions"),
    ("redraw-p-minus-q", DIFFERENCE | {"clamped": 1e-9}, "fails"),
    ("no-rollback", STALE | {"same": 6, "stays": 1.0}, "holds"),
    ("no-rollback", STALE | {"same": 6, "stays": 1.0, "left": 0.0}, "conditions"),  # nothing rejected, so nothing shown
    ("no-rollback", STALE | {"same": 4, "stays": 0.95}, "conditions"),
    ("no-rollback", STALE | {"same": 0, "stays": 0.1}, "fails"),
    ("paged-throughput", PAGING | {"fit": 2.3, "faster": 2.0}, "holds"),
    ("paged-throughput", PAGING | {"fit": 2.3, "faster": 1.9}, "conditions"),
    ("paged-throughput", PAGING | {"fit": 1.9, "faster": 1.9, "naive": 3.0}, "conditions"),
    ("paged-throughput", PAGING | {"fit": 1.9, "faster": 1.9}, "fails"),
    ("ladder", LADDER | {"measured: a": 1.1, "measured: b": 2.0, "measured: c": 3.0, "measured: d": 4.0}, "holds"),
    ("ladder", LADDER | {"measured: a": 1.1, "measured: b": 2.0, "measured: c": 1.0, "measured: d": 2.0}, "conditions"),
    ("ladder", LADDER | {"measured: a": 1.1, "measured: b": 1.4, "measured: c": 1.0, "measured: d": 2.0}, "fails"),
    ("both-ten", BOTH | {"at_16": 10.1, "at_128": 20.0}, "holds"),
    ("both-ten", BOTH | {"at_16": 5.0, "at_128": 20.0}, "holds"),
    ("both-ten", BOTH | {"at_16": 5.0, "at_128": 9.9}, "fails"),
]


@pytest.mark.parametrize(("name", "values", "word"), CASES, ids=[f"{name}, {word}" for name, _, word in CASES])
def test_the_numbers_decide_the_verdict(name, values, word):
    verdict = CLAIMS[name].judge(values)
    assert verdict.word == word
    assert bool(verdict.needs) == (word != "holds")


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("short-speedup", {"at_16": 1.35, "at_128": 1.55}, "×1.35 to ×1.55 between 16 and 128 tokens."),
        ("long-speedup", {"at_16": 1.2, "at_960": 2.9}, "At most ×2.9, at up to 960 tokens."),
        ("complexity", GROWTH | time_power(uncached=(0.8, 4.0), cached=(0.8, 1.2)), "(0.80 to 4.00 or more)"),
        ("complexity", GROWTH | time_power(uncached=(0.8, 3.9), cached=(0.8, 1.2)), "(0.80 to 3.90) without the cache"),
        (
            "complexity",
            GROWTH | time_power(uncached=(1, 2), cached=(0.8, 1.2)) | {"uncached_grows": False},
            "does not surely grow without the cache, and grows with the power 1.00",
        ),
        ("acceptance-rate", ACCEPTED | by_kind(accepted=(0.8, 0.65, 0.4, 0.0)), "In all: 40% to 80%, by text"),
        (
            "speedup-formula",
            FORMULA | by_kind(said=(3.5, 3.5, 3.0, 1.0), faster=(1.5, 1.2, 0.8, 0.5)),
            "it is not even that: it says 3 where a pass gave 2 (code (temperature 1.5)).",
        ),
        (
            "speedup-formula",
            FORMULA | by_kind(faster=(1.5, 1.2, 0.8, 0.1)),
            "decoding is ×0.8 as fast where it says ×2 (code (temperature 1.5)).",
        ),
        (
            "two-to-three",
            TWO | by_kind(faster=(1.5, 1.2, 1.0, 0.5), large=(2.5, 1.9, 1.2, 0.6)),
            "All 4 greedy texts stay the same. Here ×0.5 to ×1.5 (stories (greedy)). With as many tokens per round, a "
            "draft of a tenth of the cost, a wide pass as fast as a narrow one and no other work, it would be ×2.5 for "
            "stories (greedy), and ×1.9 for stories (temperature 0.8).",
        ),
        ("three-to-ten", THREE | JUDGED | by_kind(faster=(1.9, 1.0, 1.0, 0.5)), "Here at most ×1.9."),
        ("three-to-ten", THREE | JUDGED | by_kind(faster=(1.9, 1.0, 1.0, 0.5)), "here is 80% (stories (greedy))."),
        ("seven-two", {"need": 0.7} | JUDGED, "here it is 65% in stories (temperature 0.8), 80% in stories (greedy)."),
        ("int8-halves", {"numbers": 2.0, "claimed": 2.0, "most": 1.94, "least": 1.8}, "×1.8 to ×1.94 with the scales"),
        ("int8-halves", {"numbers": 2.0, "claimed": 2.0, "most": 1.94, "least": 1.94}, "×1.94 with the scales"),
        ("kv-heads-8", HEADS | {"loads": False, "forced_kl": 2.0, "mean_kl": 0.5}, "A multi-head model does not load"),
        ("kv-heads-8", HEADS | {"loads": True, "forced_kl": 2.0, "mean_kl": 0.5}, "A multi-head model loads so"),
    ],
)
def test_a_verdict_gives_what_was_found(name, values, says):
    assert says in judged(name, values).why


@pytest.mark.parametrize(
    ("fit", "needs"), [(0.9, "3 such sequences at once."), (1.0, "at once, or 1 of a model with 64")]
)
def test_a_size_is_also_given_in_sequences_of_every_head_if_one_fits(fit, needs):
    assert (
        needs
        in judged("seventy-80gb", {"claimed": 80, "own": 10, "every": 9, "sequences": 3, "every_sequences": fit}).needs
    )


def test_a_p_value_too_small_for_a_float_is_given_as_a_bound():
    verdict = CLAIMS["redraw-p-minus-q"].judge(DIFFERENCE | {"absolute": 0.0})
    assert "(p-value below 1e-300)" in verdict.why


def judged(name: str, values: dict[str, float]) -> Verdict:
    return CLAIMS[name].judge(values)


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ({"at_16": 10.1, "at_128": 20.0}, "Above ×10 after 16 and 128 tokens"),
        ({"at_16": 5.0, "at_128": 20.0}, "Above ×10 after 128 tokens"),
        ({"at_16": 10.1, "at_128": 20.0, "at_384": 30.0}, "Above ×10 after 16, 128 and 384 tokens"),
        ({"at_16": 5.0, "at_128": 9.9}, "At most ×9.9"),
    ],
)
def test_both_ten_names_the_lengths_and_the_speed_up_over_a_cache(at, says):
    why = judged("both-ten", BOTH | at).why
    assert says in why
    assert "Over decoding with a cache, the usual starting point, it is ×0.9 to ×1.4." in why


def test_only_float32_decides_by_greedy_texts():
    by_speed = by_kind(faster=(3.0,) * 4, large=(3.0,) * 4)
    rounded = judged("two-to-three", TWO | {"same": 3, "exact": False} | by_speed)
    assert "1 of 4 greedy texts parts from" in rounded.why
    assert "2 of 4 greedy texts part from" in judged("two-to-three", TWO | {"same": 2, "exact": False} | by_speed).why
    assert "two tokens are nearly equally likely" in rounded.why
    assert "“Accepting and redrawing”" in rounded.why
    exact = judged("two-to-three", TWO | {"same": 3} | by_speed)
    assert "1 of 4 greedy texts parts from" in exact.why
    assert "nearly" not in exact.why
    assert "draft" not in exact.needs  # a faster draft would not help


def test_paging_also_reports_the_gain_over_no_batching():
    for values in ({"fit": 2.3, "faster": 2.0}, {"fit": 2.3, "faster": 1.5}, {"fit": 1.9, "faster": 1.5}):
        why = judged("paged-throughput", PAGING | values | {"naive": 3}).why
        assert "Batching and paging together give ×3 over one request after another" in why
    alone = judged("paged-throughput", PAGING | {"fit": 1.9, "faster": 1.5, "naive": 3})
    assert alone.why.startswith("For the speed over one request after another, not for what paging alone does to the")
    both = judged("paged-throughput", PAGING | {"fit": 2.3, "faster": 1.5, "naive": 3})
    assert both.why.startswith("For how many fit and the speed over one request after another, not")


@pytest.mark.parametrize(
    ("way", "low", "high", "odd"),
    [
        ("uncached", 2.01, 3.0, True),
        ("uncached", 1.99, 3.0, False),
        ("cached", 1.01, 3.0, True),
        ("cached", 0.99, 3.0, False),
    ],
)
def test_an_implausible_exponent_is_said_to_be_a_possible_misfit(way, low, high, odd):
    powers = {"uncached": (1.1, 1.3), "cached": (0.1, 0.5)} | {way: (low, high)}
    assert ("or the form does not fit" in judged("complexity", GROWTH | time_power(**powers)).why) == odd


def test_cached_attention_dominates_from_half_the_length_on():
    verdict = judged("complexity", GROWTH | time_power(uncached=(1.1, 1.3), cached=(0.1, 1.2)))
    for text in (verdict.why, verdict.needs):
        assert "2,880 tokens without the cache" in text
        assert "1,440 with it" in text


def test_only_uncertain_findings_are_called_not_sure():
    sure = judged("int8-lossless", {"rise": 0.001, "high": 0.009, "kl": 0.011}).why
    assert "divergence is not below 0.01 nats" in sure
    assert "not sure" not in sure
    assert "not sure to be below 1%" in judged("int8-lossless", {"rise": 0.001, "high": 0.011, "kl": 0.001}).why
    both = judged("int8-lossless", {"rise": 0.001, "high": 0.011, "kl": 0.02}).why
    assert "not sure to be below 1%" in both
    assert "divergence is not below 0.01 nats" in both


def test_the_formula_is_judged_as_a_speed_up():
    some = judged("speedup-formula", FORMULA | by_kind(faster=(2.9, 1.2, 0.8, 0.5)))
    assert some.why.startswith("For stories (greedy).")
    assert "by definition" in some.why
    assert "As a speed-up it ignores" in some.why
    assert "identity" in CLAIMS["speedup-formula"].rule
    even = judged("speedup-formula", FORMULA | by_kind(faster=(3.0, 2.5, 2.0, 1.0)))
    assert "ignores" not in even.why
    same = by_kind(said=(3.0, 2.5, 2.0, 1.0), faster=(1.5, 1.2, 0.8, 0.5))
    assert "judged" not in judged("speedup-formula", FORMULA | same).why


def test_the_table_compared_with_is_the_one_that_is_described():
    described = re.findall(r"\b\d+", CLAIMS["ladder"].tested)
    assert sorted(map(int, described)) == sorted(TABLE.values())


def test_quotes_keep_their_qualifications():
    assert "than naive HuggingFace pipelines" in CLAIMS["paged-throughput"].quote
    assert "higher batching" in CLAIMS["paged-throughput"].quote
    assert CLAIMS["redraw-p-minus-q"].quote.endswith("# Simplified")
    assert CLAIMS["acceptance-rate"].quote.startswith("With a well-matched draft model")


def decided(name: str, *numbers: Number) -> Verdict:
    return CLAIMS[name].verdict(Found(numbers))


def test_repeats_on_both_sides_of_a_limit_give_no_verdict() -> None:
    """int8-speed holds from ×0.9 to ×1.1 after every text."""
    far = Number.median("at_768", "after 768", [1.0, 1.02, 0.99], "×")
    for repeats, word in (
        ([0.98, 1.0, 1.02], "holds"),
        ([0.98, 1.0, 1.12], "noisy"),  # once on the other side
        ([0.89, 0.88, 0.91], "noisy"),
        ([0.7, 0.8, 0.85], "conditions"),
        ([0.5, 0.98, 0.99, 1.0, 1.0, 1.01, 1.02, 1.03, 2.0], "holds"),  # enough repeats to leave out outliers
    ):
        verdict = decided("int8-speed", Number.median("at_16", "INT8 after 16", repeats, "×"), far)
        assert verdict.word == word, repeats
    wide = [Number.median(f"at_{length}", "", [0.37, 1.42, 3.3], "×") for length in (16, 768)]
    assert decided("int8-speed", *wide).word == "noisy"  # both ends are outside the limits, which lie between them
    noisy = decided("int8-speed", Number.median("at_16", "INT8 after 16", [0.98, 1.0, 1.12], "×"), far)
    assert noisy.why.startswith("“holds here” or “holds under conditions”: INT8 after 16 came out as ×1, ")
    assert "and anything from ×0.98 to ×1.12 fits nearly as well." in noisy.why
    assert "repeats" not in noisy.needs  # the page offers a check again, no more of them


def test_a_number_without_an_interval_decides_by_its_value() -> None:
    assert decided("int8-speed", Number("at_16", "", 1.09, "×"), Number.median("at_64", "", [1.0], "×")).word == "holds"
    assert Number.median("at_64", "", [1.0], "×").spread == ""


def test_a_wide_interval_that_changes_no_verdict_is_not_noisy() -> None:
    wide = Number.median("at_960", "", [4.0, 9.0, 30.0], "×")
    assert decided("long-speedup", Number.median("at_16", "", [1.0, 1.4], "×"), wide).word == "holds"
    assert decided("long-speedup", wide._replace(low=2.9)).word == "noisy"


@pytest.mark.parametrize(("low", "high", "word"), [(0.61, 0.69, "holds"), (0.55, 0.75, "noisy")])
def test_a_wide_interval_of_acceptance_meets_no_claim(low: float, high: float, word: str) -> None:
    claimed = [Number(key, "", value) for key, value in ACCEPTED.items()]
    shares = [Number(f"accepted: {kind}", kind, 0.65, "%", low=low, high=high) for kind in KINDS]
    assert decided("acceptance-rate", *claimed, *shares).word == word


def test_a_gain_that_is_at_its_limit_by_chance_gives_no_verdict() -> None:
    fixed = TWO | by_kind(faster=(1.5, 1.2, 1.0, 0.5)) | by_kind(large=(2.02, 1.5, 1.2, 0.6))
    numbers = {key: Number(key, key, value) for key, value in fixed.items()}
    assert decided("two-to-three", *numbers.values()).word == "conditions"
    large = f"large: {KINDS[0]}"
    numbers[large] = numbers[large]._replace(low=1.6, high=2.63)
    assert decided("two-to-three", *numbers.values()).word == "noisy"


def test_three_times_from_a_length_on_is_true_of_every_longer_one() -> None:
    by_length = {"at_8": 1.0, "at_64": 3.05, "at_128": 2.9, "at_512": 9.0, "at_960": 20.0}
    assert "three times from 512 on" in judged("long-speedup", by_length).why
    assert "three times from 64 on" in judged("long-speedup", by_length | {"at_128": 3.1}).why
    assert "three times from 8 on" in judged("long-speedup", {"at_8": 3.0, "at_960": 20.0}).why


def test_the_fastest_window_is_given_with_those_not_surely_slower() -> None:
    rates = {0: [100, 101, 99], 1: [150, 149, 152], 2: [151, 160, 140], 4: [120, 121, 119]}
    found = fastest(rates)
    assert (found.value, found.low, found.high) == (2, 1, 2)
    assert fastest({0: [100, 101], 4: [50, 51]})[2] == 0
    best = dict.fromkeys(KINDS, (4, 4, 4)) | {KINDS[1]: (2, 1, 4)}
    numbers = [
        Number(f"accepted: {kind}", "", share) for kind, share in zip(KINDS, (0.8, 0.65, 0.5, 0.05), strict=True)
    ]
    numbers += [Number(f"best: {kind}", kind, value, low=low, high=high) for kind, (value, low, high) in best.items()]
    assert decided("larger-window", *numbers).word == "fails"
    last = numbers[-1]._replace(value=0, low=0, high=4)
    assert decided("larger-window", *numbers[:-1], last).word == "noisy"


@pytest.mark.parametrize("name", CLAIMS)
def test_every_rule_accepts_any_numbers_within_intervals(name) -> None:
    """Numbers that could not occur together give a verdict, too, and no error."""
    for claim, values, _ in CASES:
        if claim == name:
            numbers = [Number(key, key, value, low=0.5 * value, high=2 * value) for key, value in values.items()]
            assert CLAIMS[name].verdict(Found(tuple(numbers))).word in WORDS


def test_every_rule_is_tried_on_more_than_one_side():
    for name in CLAIMS:
        words = {word for claim, _, word in CASES if claim == name}
        assert "holds" in words, name
        assert len(words) > 1, name


def test_numbers_are_formatted_for_people():
    assert [plain(x) for x in (0, 2, 1.239, 12.39, 123.9, 1_234_567, 0.01, 0.0012349, 0.00012349, 2.9e-297)] == [
        "0",
        "2",
        "1.24",
        "12.4",
        "124",
        "1,234,567",
        "0.01",
        "0.00123",
        "0.000123",
        "2.9e-297",
    ]
    texts = [
        Number("a", "a", 0.123, "%").text,
        Number("a", "a", -0.0494, "%").text,
        Number("a", "a", 2.5, "×").text,
        Number("a", "a", 3, "ms").text,
        Number("a", "a", True).text,
        Number("a", "a", math.inf, "%").text,
    ]
    assert texts == ["12.3%", "−4.94%", "×2.5", "3 ms", "yes", "none"]
