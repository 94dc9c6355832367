"""The pair that comes with the repository: its shape, its size, and its card."""

from __future__ import annotations

import json

import pytest
from safetensors import safe_open

from lab import EngineConfig, SamplingParams, load_engine
from lab.models.loader import EMBEDDED_DRAFTS, WEIGHTS
from lab.trace.events import Proposed, Verified
from lab.training.model_card import render

MEGABYTE = 1e6
PROMPT = "Once upon a time there was a poor woodcutter who"


@pytest.fixture(scope="module")
def engines():
    return {draft: load_engine(draft=draft, device="cpu") for draft in EMBEDDED_DRAFTS}


@pytest.fixture(scope="module")
def card():
    return json.loads((WEIGHTS / "card.json").read_text("utf-8"))


def test_files_are_small_enough_for_plain_git_and_weights_are_bfloat16():
    sizes = [path.stat().st_size for path in WEIGHTS.rglob("*") if path.is_file()]
    assert max(sizes) <= 9.5 * MEGABYTE
    assert sum(sizes) <= 45 * MEGABYTE
    for path in WEIGHTS.rglob("*.safetensors"):
        with safe_open(path, "pt") as tensors:
            dtypes = {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
            assert set(dtypes.values()) == {"BF16"} | {dtypes[name] for name in ("d2t", "t2d") if name in dtypes}


def test_shapes_of_target_and_drafts(engines):
    target = engines["matched"].target.model
    assert target.config.model_type == "llama"
    assert 10e6 <= target.num_parameters() <= 15e6
    assert target.config.num_key_value_heads < target.config.num_attention_heads
    for engine in engines.values():
        assert engine.draft.model.num_parameters() <= 1.2e6
        assert engine.draft.layers <= 2
        assert engine.target.head_dim == engine.draft.head_dim == 64
        assert min(engine.target.context_length, engine.draft.context_length) >= 1024


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_mismatched_draft_is_accepted_far_less_often(engines, temperature):
    rates = {}
    for name, engine in engines.items():
        proposed = accepted = 0
        how, drafted = {"temperature": temperature, "ignore_eos": True}, EngineConfig(speculative="draft", paged=True)
        samplings = [SamplingParams(max_tokens=80, seed=seed, **how) for seed in range(4 if temperature else 1)]
        for run in [request.result() for request in [engine.submit(PROMPT, drafted, it) for it in samplings]]:
            proposed += sum(isinstance(event, Proposed) for event in run.events)
            accepted += sum(isinstance(event, Verified) and event.accepted for event in run.events)
        rates[name] = accepted / proposed
    assert rates["mismatched"] < 0.5 * rates["matched"]


def test_the_target_does_not_loop(engines):
    """At temperature 0.8 hardly any sequence of four words occurs twice in a page."""
    engine, paged = engines["matched"], EngineConfig(paged=True)
    how = {"max_tokens": 120, "temperature": 0.8, "ignore_eos": True}
    requests = [engine.submit(PROMPT, paged, SamplingParams(seed=seed, **how)) for seed in range(4)]
    for run in [request.result() for request in requests]:
        words = run.text.split()
        grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
        assert len(set(grams)) > 0.9 * len(grams)


def test_a_full_context_can_be_decoded(engines):
    engine = engines["matched"]
    prompt = engine.tokenizer.decode(list(range(300, 1250)))
    length = len(engine.tokenizer(prompt)["input_ids"])
    assert length < 1024
    run = engine.generate(prompt, EngineConfig(speculative="draft"), SamplingParams(max_tokens=200, ignore_eos=True))
    assert len(run.token_ids) == min(200, 1024 - length)


def test_the_card_is_about_these_weights(engines, card):
    """The README is rendered from card.json, and card.json describes these models."""
    assert (WEIGHTS / "README.md").read_text("utf-8") == render(card)
    models = {"target": engines["matched"].target}
    models |= {EMBEDDED_DRAFTS[name]: engine.draft for name, engine in engines.items()}
    assert card["models"].keys() == models.keys()
    for name, model in models.items():
        assert card["models"][name]["parameters"] == model.model.num_parameters()
