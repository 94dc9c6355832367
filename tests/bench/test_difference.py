"""Where outputs first differ, and how sure the target was there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lab.config import EngineConfig, SamplingParams
from lab.measure.difference import Difference, draws, first_difference, first_differences, read_again
from lab.trace.events import Committed
from tests import tiny_models

PROMPT = "The king had three sons"
DRAFT = EngineConfig(speculative="draft", num_speculative_tokens=3)


@pytest.fixture(scope="module")
def engine():
    return tiny_models.engine("llama", "good")


def probabilities(run):
    return [p for event in run.events if isinstance(event, Committed) for p in event.probabilities]


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(seed=5), SamplingParams(seed=5, temperature=1.0), SamplingParams(seed=5, temperature=0.7, top_k=9)],
    ids=["greedy", "sampled", "of the likeliest nine"],
)
def test_the_first_difference_of_int4_has_the_margins_of_both_settings(engine, sampling):
    """Checked against transformers for native, and for both against what the runs recorded."""
    sampling = replace(sampling, max_tokens=120, ignore_eos=True)
    configs = {"native": EngineConfig(), "int4": EngineConfig(kv_dtype="int4")}
    runs = {name: engine.generate(PROMPT, config, sampling) for name, config in configs.items()}
    found = first_differences(engine, runs)[("native", "int4")]
    native, int4 = (runs[name].token_ids for name in configs)
    assert native[: found.place] == int4[: found.place]
    assert native[found.place] != int4[found.place]
    for run, choice in zip(runs.values(), (found.a, found.b), strict=True):
        assert choice.p == probabilities(run)[found.place]
        again = read_again(engine, run, [found.place])[found.place]
        assert again[run.token_ids[found.place]].item() == pytest.approx(choice.p, abs=1e-4)
        if sampling.greedy:
            assert choice.p - choice.margin >= choice.other_p - 1e-6
    ids = torch.tensor([[*runs["native"].prompt_token_ids, *native[: found.place]]])
    with engine.target.stock_attention() as model, torch.inference_mode():
        logits = model(ids).logits[0, -1]
    if not sampling.top_k:
        p = (logits / (sampling.temperature or 1)).softmax(-1)
        first, second = p.topk(2).values.tolist()
        assert found.a.margin == pytest.approx(first - second, abs=1e-4)
        assert found.a.other_p == pytest.approx(p[int4[found.place]].item(), abs=1e-4)
    assert found.a.margin != found.b.margin  # each under its own setting


def test_places_far_apart_are_read_in_one_go(engine, monkeypatch):
    monkeypatch.setattr("lab.measure.score.CHUNK", 16)
    run = engine.generate(
        PROMPT, EngineConfig(), SamplingParams(max_tokens=40, temperature=1.0, seed=5, ignore_eos=True)
    )
    again = read_again(engine, run, {35, 2, 20})
    assert {place: p[run.token_ids[place]].item() for place, p in again.items()} == pytest.approx(
        {place: probabilities(run)[place] for place in (2, 20, 35)}, abs=1e-4
    )


def test_only_pairs_that_differ_are_reported(engine):
    """Sampled with a draft or without: other tokens from the same distribution, so with the same margin."""
    sampling = SamplingParams(max_tokens=40, temperature=1.0, seed=5, ignore_eos=True)
    configs = {
        "cache": EngineConfig(),
        "draft": DRAFT,
        "paged": EngineConfig(paged=True),
        "no cache": EngineConfig(kv_cache=False),
    }
    runs = {name: engine.generate(PROMPT, config, sampling) for name, config in configs.items()}
    found = first_differences(engine, runs)
    assert list(found) == [("cache", "draft"), ("draft", "paged"), ("draft", "no cache")]
    one = found["cache", "draft"]
    assert one.a.margin == pytest.approx(one.b.margin, abs=1e-5)
    assert one.a.p == pytest.approx(one.b.other_p, abs=1e-5)
    assert one.b.p == pytest.approx(one.a.other_p, abs=1e-5)
    swapped = first_differences(engine, {name: runs[name] for name in ("draft", "cache")})["draft", "cache"]
    assert swapped == Difference(one.place, one.b, one.a)


def test_an_output_that_has_ended_differs_from_a_longer_one(engine):
    runs = {
        name: engine.generate(PROMPT, EngineConfig(), SamplingParams(max_tokens=n, ignore_eos=True))
        for name, n in (("long", 6), ("short", 4))
    }
    found = first_differences(engine, runs)["long", "short"]
    assert found.place == 4
    assert found.b is None
    assert found.a.other_p is None
    assert found.a.margin <= found.a.p
    assert first_difference(runs["long"], runs["long"]) is None
    assert first_difference(runs["short"], runs["long"]) == 4


def test_settings_with_the_same_draft_tokens_use_the_same_draws():
    assert draws(EngineConfig()) == draws(EngineConfig(speculative="synthetic")) == ()
    assert draws(DRAFT) == draws(replace(DRAFT, kv_dtype="int8", paged=True))
    lookup, early = (replace(DRAFT, speculative=name) for name in ("ngram", "early_exit"))
    others = [
        DRAFT,
        replace(DRAFT, num_speculative_tokens=4),
        replace(DRAFT, adaptive_window=True),
        lookup,
        replace(lookup, prompt_lookup_min=3),
        replace(lookup, prompt_lookup_max=7),
        early,
        replace(early, early_exit_layer=1),
        replace(DRAFT, rejection_sample_method="block"),
        replace(DRAFT, draft_sample_method="greedy"),
    ]
    assert len({draws(config) for config in others}) == len(others)
    assert draws(replace(DRAFT, prompt_lookup_min=3, early_exit_layer=1)) == draws(DRAFT)
