"""A against B: quality is exact where it has to be. Of speeds it is only asserted that they are reported."""

from __future__ import annotations

import functools
import json
import math

import pytest

from lab import ConfigError, EngineConfig, LabError, SamplingParams
from lab.bench import quality_bench as bench
from lab.bench.quality_bench import Sample, SideMetrics, measure_sample, run_ab, summarise
from lab.trace.run import AcceptanceStats as Stats
from tests import tiny_models

PROMPTS = ["The king", "A fox ran", "Once upon a time", "In the wood", "A hen sat", "Long ago"]
TOKENS = 10
PLAIN, PAGED, INT4 = EngineConfig(), EngineConfig(paged=True), EngineConfig(kv_dtype="int4")
SPECULATIVE = EngineConfig(speculative="draft", num_speculative_tokens=3)


@pytest.fixture(scope="module")
def compare(lab):
    """The record of a comparison; each is made once."""

    @functools.cache
    def made(a: EngineConfig, b: EngineConfig, temperature: float = 0.0, top_p: float = 1.0) -> dict:
        sampling = SamplingParams(max_tokens=TOKENS, temperature=temperature, top_p=top_p)
        found = run_ab(lab, a, b, PROMPTS, sampling, repeats=1, report=lambda line: None)
        return json.loads(json.dumps(found))

    return made


@pytest.mark.parametrize("config", [PLAIN, SPECULATIVE], ids=["plain", "speculative"])
def test_a_setting_does_not_differ_from_itself(compare, config) -> None:
    result = compare(config, config)
    assert result["kl"] == {"value": 0, "low": 0, "high": 0}
    assert result["metrics"]["perplexity"]["ratio"] == {"value": 1, "low": 1, "high": 1}
    assert result["exact_match_length"] == {"value": TOKENS, "low": TOKENS, "high": TOKENS}
    assert result["identical_outputs"]["value"] == 1
    assert result["identical_outputs"]["low"] < 1  # six prompts do not prove it for all
    for name in ("ttft_ms", "itl_p50_ms", "tokens_per_second"):
        for side in ("a", "b", "ratio"):
            interval = result["metrics"][name][side]
            assert 0 < interval["low"] <= interval["value"] <= interval["high"]


@pytest.mark.slow
def test_lossless_settings_change_rounding_at_most_and_coarser_caches_diverge_more(compare) -> None:
    for lossless in (PAGED, EngineConfig(kv_cache=False), SPECULATIVE):
        result = compare(PLAIN, lossless)
        assert result["identical_outputs"]["value"] == 1
        assert abs(result["kl"]["value"]) < 1e-7
    int8, int4 = (compare(PLAIN, config) for config in (EngineConfig(kv_dtype="int8"), INT4))
    assert 1e-6 < int8["kl"]["low"] <= int8["kl"]["value"] < int4["kl"]["value"]


@pytest.mark.slow
def test_swapping_a_and_b_inverts_the_result(compare) -> None:
    """Each setting finds its own text likelier than the other's: on one text alone, the one that wrote it would win."""
    one, other = (compare(*sides, temperature=0.9)["metrics"]["perplexity"] for sides in ((PLAIN, INT4), (INT4, PLAIN)))
    assert one["ratio"]["value"] != 1
    assert list(one["ratio"].values()) == pytest.approx([1 / other["ratio"][end] for end in ("value", "high", "low")])
    for a, b in ("ab", "ba"):
        assert list(one[a].values()) == pytest.approx(list(other[b].values()))


@pytest.mark.parametrize("b_first", [False, True])
def test_a_and_b_alternate_and_each_repeat_has_a_seed_of_its_own(lab, monkeypatch, b_first) -> None:
    turns, decode = [], bench._decode

    def spy(engine, prompt, config, sampling):
        turns.append((config.paged, sampling.greedy or sampling.seed))
        return decode(engine, prompt, config, sampling)

    monkeypatch.setattr(bench, "_decode", spy)
    sampling = SamplingParams(max_tokens=3, temperature=1.0, seed=0, ignore_eos=True)
    measure_sample(lab, PLAIN, PAGED, "A fox", sampling, 3, b_first=b_first)
    first, other = b_first, not b_first
    assert turns[:6] == [(first, 0), (other, 0), (other, 1), (first, 1), (first, 2), (other, 2)]
    assert turns[6:] == [(False, True), (True, True)]  # greedy texts, to be compared


def side(stats: Stats, *times: float) -> SideMetrics:
    return SideMetrics(*(times or (1, 1, 1)), stats)


def test_figures_summarise_the_samples() -> None:
    slow, fast = side(Stats(0, 0, 0), 10, 4, 100), side(Stats(2, 6, 3), 20, 2, 300)
    samples = [Sample(slow, fast, 10, True, 10, 1.0, 20, 20), Sample(slow, fast, 4, False, 30, 0.0, 60, 60)] * 3
    result = summarise(samples)
    assert result["kl"]["value"] == 1 / 40  # the mean over tokens, not over prompts
    assert result["exact_match_length"]["value"] == 7
    assert result["identical_outputs"]["value"] == 0.5
    metrics = result["metrics"]
    assert metrics["tokens_per_second"]["ratio"] == {"value": 3, "low": 3, "high": 3}
    assert metrics["perplexity"]["a"]["value"] == pytest.approx(math.exp(2))
    assert metrics["draft_acceptance_rate"]["b"] == {"value": 0.5, "low": 0.5, "high": 0.5}
    assert metrics["mean_acceptance_length"]["b"] == {"value": 2.5, "low": 2.5, "high": 2.5}
    found = summarise([Sample(slow, slow, 1, True, 10, 0.0, 20.0, 25.0)] * 6)["metrics"]["perplexity"]
    assert found["ratio"]["value"] == pytest.approx(found["b"]["value"] / found["a"]["value"]) == math.exp(0.5)


def test_a_prompt_counts_by_its_draft_tokens() -> None:
    """A prompt for which nothing was proposed says nothing about acceptance: a mean of rates would give 0.3."""
    stats = [Stats(0, 0, 0), Stats(10, 40, 20), Stats(1, 4, 0)] + [Stats(5, 20, 10), Stats(5, 20, 4)] * 2
    metrics = summarise([Sample(side(one), side(one), 1, True, 2, 0, 1, 1) for one in stats])["metrics"]
    accepted = metrics["draft_acceptance_rate"]
    assert accepted["a"]["value"] == 48 / 124
    assert 0.1 < accepted["a"]["low"] < 48 / 124 < accepted["a"]["high"] <= 0.5
    assert accepted["ratio"]["value"] == accepted["ratio"]["low"] == 1
    assert metrics["mean_acceptance_length"]["a"]["value"] == 1 + 48 / 31
    json.dumps(metrics, allow_nan=False)
    none = [Sample(side(Stats(5, 20, 0)), side(Stats(5, 20, 9)), 1, True, 2, 0, 1, 1)] * 6
    metrics = summarise(none)["metrics"]  # an acceptance rate of 0 has no ratio to it
    assert metrics["draft_acceptance_rate"]["a"]["value"] == 0
    assert metrics["draft_acceptance_rate"]["ratio"] is None
    assert metrics["mean_acceptance_length"]["ratio"]["value"] == pytest.approx(2.8)


FEW = EngineConfig(paged=True, num_blocks=2, block_size=16)
LONG = "x" * (tiny_models.CONTEXT - 1)


@pytest.mark.parametrize(
    ("b", "prompts", "tokens", "repeats", "kind", "message"),
    [
        (PLAIN, PROMPTS, 1, 1, ConfigError, "two tokens"),
        (PLAIN, PROMPTS, 8, 0, ConfigError, "a repeat"),
        (PLAIN, [], 8, 1, ConfigError, "at least a prompt"),
        (PLAIN, ["A", LONG], 8, 1, LabError, f"{tiny_models.CONTEXT - 1} tokens, .* Shorten it.$"),
        (PLAIN, ["A", 3 * LONG], 8, 1, LabError, "Shorten it.$"),
        (FEW, ["A", "x" * 100], 8, 1, LabError, "the pool has 2"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_the_first_run(
    lab, monkeypatch, b, prompts, tokens, repeats, kind, message
) -> None:
    monkeypatch.setattr(bench, "_decode", lambda *_: pytest.fail("decoded before all had been checked"))
    with pytest.raises(kind, match=message):
        run_ab(lab, PLAIN, b, prompts, SamplingParams(max_tokens=tokens), repeats=repeats, report=print)
