"""A against B: quality is exact where it has to be. Of speeds it is only asserted that they are reported."""

import functools
import itertools
import json
import math

import pytest

from lab import ConfigError, EngineConfig, LabError, SamplingParams
from lab.bench import ab_bench as bench
from tests import tiny_models

PROMPTS = ["The king", "A fox ran", "Once upon a time", "In the wood", "A hen sat", "Long ago"]
TOKENS = 10
PLAIN, PAGED, INT4 = EngineConfig(), EngineConfig(paged=True), EngineConfig(kv_dtype="int4")
SPECULATIVE = EngineConfig(speculative="draft", num_speculative_tokens=3)


@pytest.fixture(scope="module")
def compare(lab):
    """The record of a comparison; each is made once."""

    @functools.cache
    def made(a: EngineConfig, b: EngineConfig, temperature: float = 0.0) -> dict:
        sampling, configs = SamplingParams(max_tokens=TOKENS, temperature=temperature), {"a": a, "b": b}
        found = bench.run_ab(lab, configs, PROMPTS, sampling, repeats=1, report=lambda line: None)
        return json.loads(json.dumps(found, allow_nan=False))

    return made


@pytest.mark.parametrize("config", [PLAIN, SPECULATIVE], ids=["plain", "speculative"])
def test_a_setting_does_not_differ_from_itself(compare, config) -> None:
    result = compare(config, config)
    assert result["kl"] == {"value": 0, "low": 0, "high": 0}
    assert result["metrics"]["perplexity"]["ratio"] == {"value": 1, "low": 1, "high": 1}
    assert result["exact_match_length"] == {"value": TOKENS, "low": TOKENS, "high": TOKENS}
    assert result["identical_outputs"]["value"] == 1
    assert result["identical_outputs"]["low"] < 1  # six prompts do not prove it for all
    for name, side in itertools.product(bench.TIMES, ("a", "b", "ratio")):
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


def sample(match: int, tokens: int, kl: float, a: tuple, b: tuple) -> bench.Sample:
    names = (*bench.TIMES, "rounds", "proposed", "accepted", "surprise")
    sides = {side: dict(zip(names, values, strict=True)) for side, values in (("a", a), ("b", b))}
    return sides | {"exact_match_length": match, "identical": match == 10, "tokens": tokens, "kl": kl}


def test_figures_summarise_the_samples() -> None:
    """A prompt counts by its draft tokens: one for which nothing was proposed says nothing about acceptance."""
    slow, fast = (10, 4, 100, 0, 0, 0), (20, 2, 300, 2, 6, 3)
    samples = [
        sample(10, 10, 1.0, (*slow, 20), (*fast, 20)),
        sample(4, 30, 0.0, (*slow, 60), (*slow[:2], 300, 0, 0, 0, 75)),
    ]
    result = bench.summarise(samples * 3)
    assert result["kl"]["value"] == 1 / 40  # the mean over tokens, not over prompts
    assert result["exact_match_length"]["value"] == 7
    assert result["identical_outputs"]["value"] == 0.5
    metrics = result["metrics"]
    assert metrics["tokens_per_second"]["ratio"] == {"value": 3, "low": 3, "high": 3}
    assert metrics["perplexity"]["a"]["value"] == pytest.approx(math.exp(2))
    assert metrics["perplexity"]["ratio"]["value"] == pytest.approx(math.exp(15 / 40))
    assert metrics["draft_acceptance_rate"]["a"] is None
    assert metrics["draft_acceptance_rate"]["b"]["value"] == 0.5
    assert metrics["mean_acceptance_length"]["b"]["value"] == 2.5


@pytest.mark.parametrize(
    ("b", "prompts", "tokens", "repeats", "kind", "message"),
    [
        (PLAIN, PROMPTS, 1, 1, ConfigError, "two tokens"),
        (PLAIN, PROMPTS, 8, 0, ConfigError, "a repeat"),
        (PLAIN, ["A", "x" * (tiny_models.CONTEXT - 1)], 8, 1, LabError, "Shorten it.$"),
        (EngineConfig(paged=True, num_blocks=2, block_size=16), ["A", "x" * 100], 8, 1, LabError, "the pool has 2"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_the_first_run(
    lab, monkeypatch, b, prompts, tokens, repeats, kind, message
) -> None:
    monkeypatch.setattr(bench, "decode_ready", lambda *_: pytest.fail("decoded before all had been checked"))
    configs, sampling = {"a": PLAIN, "b": b}, SamplingParams(max_tokens=tokens)
    with pytest.raises(kind, match=message):
        bench.run_ab(lab, configs, prompts, sampling, repeats=repeats, report=print)
