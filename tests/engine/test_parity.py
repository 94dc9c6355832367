"""Greedy decoding gives the same tokens as transformers, whatever the settings."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

from lab import EngineConfig, SamplingParams
from tests import tiny_models

PROMPT = "There was once a fisherman"
NEW_TOKENS = 64

COMBINATIONS = [
    EngineConfig(kv_cache=cache, kv_dtype=kv_dtype, paged=paged, speculative=speculative, num_speculative_tokens=3)
    for cache, kv_dtype, paged, speculative in itertools.product(
        (True, False), ("auto", "int8", "int4"), (False, True), ("off", "draft")
    )
    if cache or (kv_dtype == "auto" and not paged)
]
LOSSLESS = [config for config in COMBINATIONS if config.kv_dtype == "auto"]


def describe(config: EngineConfig) -> str:
    parts = [
        "cache" if config.kv_cache else "no cache",
        config.kv_dtype if config.kv_dtype != "auto" else "",
        "paged" if config.paged else "",
        "spec" if config.speculative == "draft" else "",
    ]
    return "+".join(part for part in parts if part)


@functools.cache
def reference(architecture: str) -> list[int]:
    model = tiny_models.random_model(architecture)
    ids = tiny_models.tokenizer()(PROMPT, return_tensors="pt")["input_ids"]
    model.generation_config.eos_token_id = None
    output = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False)
    return output[0, ids.shape[1] :].tolist()


@functools.cache
def engine(architecture: str, draft: str):
    return tiny_models.engine(architecture, draft)


DRAFT_TOKENS = ("off", *tiny_models.DRAFTS)
# Pairwise coverage of architecture, cache and draft: each architecture shifts the pairing of cache and draft by one.
CASES = [
    pytest.param(architecture, config, draft, id=f"{architecture}-{describe(config)}-{draft}")
    for i, architecture in enumerate(tiny_models.CONFIGS)
    for j, draft in enumerate(DRAFT_TOKENS)
    for config in [[config for config in LOSSLESS if (config.speculative == "off") == (draft == "off")][(i + j) % 3]]
]


@pytest.mark.parametrize(("architecture", "config", "draft"), CASES)
def test_greedy_decoding_equals_generate(architecture, draft, config):
    lab = engine(architecture, "good" if draft == "off" else draft)
    run = lab.generate(PROMPT, config, SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True))
    assert run.reason == "length", run.finished
    assert run.token_ids == reference(architecture)
    if config.speculative == "draft" and draft == "identical":
        assert run.metrics.draft_acceptance_rate == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("architecture", tiny_models.CONFIGS)
def test_the_drafts_agree_with_the_target_to_different_degrees(architecture):
    """The three drafts of the parity test cover high, low and full agreement."""
    rates = {
        draft: engine(architecture, draft)
        .generate(PROMPT, EngineConfig(speculative="draft"), SamplingParams(max_tokens=60, ignore_eos=True))
        .metrics.draft_acceptance_rate
        for draft in tiny_models.DRAFTS
    }
    assert rates["identical"] == 1.0
    assert rates["bad"] < 0.3 < rates["good"]


# Every architecture meets both kinds of storage: one with INT8, the other with INT4.
@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "paged"), [*zip(tiny_models.CONFIGS, itertools.cycle((False, True)))])
def test_int8_speculation_equals_int8_alone(architecture, paged):
    """INT8 changes the model's numbers a little, but speculation on top of it changes nothing."""
    check_speculation_changes_nothing(engine(architecture, "good"), "int8", paged)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "paged"), [*zip(tiny_models.CONFIGS, itertools.cycle((True, False)))])
def test_int4_speculation_equals_int4_alone(architecture, paged):
    """In float64: in float32 the last digit depends on how many tokens a forward pass has, which now and
    then moves a value to the next of only 16 levels, and that is enough to change a token."""
    lab = tiny_models.engine(architecture, "good")
    lab.target.model.double()
    lab.draft.model.double()
    check_speculation_changes_nothing(lab, "int4", paged)


def check_speculation_changes_nothing(lab, kv_dtype: str, paged: bool) -> None:
    sampling = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    alone = lab.generate(PROMPT, EngineConfig(kv_dtype=kv_dtype, paged=paged), sampling)
    drafted = lab.generate(PROMPT, EngineConfig(kv_dtype=kv_dtype, paged=paged, speculative="draft"), sampling)
    assert alone.reason == drafted.reason == "length"
    assert alone.token_ids == drafted.token_ids


@pytest.mark.slow
def test_every_combination_ends_and_gives_its_blocks_back():
    lab = engine("llama", "good")
    for config in COMBINATIONS:
        run = lab.generate(PROMPT, config, SamplingParams(max_tokens=40, temperature=0.9, seed=3))
        assert run.reason in ("length", "eos"), run.finished
        assert lab.occupancy().live == 0


def test_stock_attention_restores_generate():
    lab = engine("llama", "good")
    ids = torch.tensor([lab.tokenizer(PROMPT)["input_ids"]])
    with pytest.raises(RuntimeError, match="stock_attention"):
        lab.target.model.generate(ids, max_new_tokens=2)
    with lab.target.stock_attention() as model:
        output = model.generate(ids, max_new_tokens=20, do_sample=False)
    assert output[0, ids.shape[1] :].tolist() == reference("llama")[:20]


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", ["fp8", "fp8_per_token_head", "int4_per_token_head", "turboquant_3bit_nc"])
def test_the_formats_of_torch_write_the_same_in_every_setting(kv_dtype):
    """In float64, as above: blocks, found prefixes and drafts change no token."""
    lab = tiny_models.engine("qwen3", "good")
    lab.target.model.double()
    lab.draft.model.double()
    plain = EngineConfig(kv_dtype=kv_dtype)
    paged = EngineConfig(kv_dtype=kv_dtype, paged=True, enable_prefix_caching=True)
    configs = plain, paged, paged, EngineConfig(kv_dtype=kv_dtype, paged=True, speculative="draft")
    sampling = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    runs = [lab.generate(PROMPT, config, sampling) for config in configs]
    assert [run.reason for run in runs] == ["length"] * 4
    assert len({tuple(run.token_ids) for run in runs}) == 1
