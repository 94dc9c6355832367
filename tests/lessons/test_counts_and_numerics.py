"""Limits of devices, tokens of a conversation, acceptance by temperature, and keys in a byte: what holds of each."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab import load_engine
from lessons.experiments.base import Experiment, whole
from lessons.experiments.caches import Models
from lessons.experiments.counts import SYSTEM_TOKENS, Roofs, Turns
from lessons.experiments.invariance import Company, compared
from lessons.experiments.kept import BLOCK_SIZE, KINDS, Kept
from lessons.experiments.numerics import EightBits, Temperatures, round_keys


def found(experiment: Experiment) -> dict[str, Any]:
    engine = functools.cache(lambda pair: load_engine(draft=pair))
    return whole(experiment.work(engine, threading.Event(), lambda *_: None)).figures


def test_a_limit_is_bytes_per_second_over_bytes_and_both_sides_of_the_roofline_meet_at_the_ridge() -> None:
    given = {"two": {"cards": 2}, "quarter": {"cards": 2, "bytes_per_parameter": 0.5}}
    one = {"model": "llama-2-70b", "card": "h200"}
    roofs = found(Roofs.model_validate({"settings": {name: one | more for name, more in given.items()}}))
    two, quarter = roofs["two"], roofs["quarter"]
    assert two["tokens_per_second"] == pytest.approx(2 * two["one_card"])
    assert two["tokens_per_second"] == pytest.approx(two["bytes_per_second"] / two["weight_bytes"])
    assert quarter["tokens_per_second"] == pytest.approx(4 * two["tokens_per_second"])
    assert quarter["ridge"] == pytest.approx(two["ridge"] / 4)
    assert 200 < two["ridge"] < 210  # 989.5 TFLOP/s over 4.8 TB/s, two operations for two bytes


@given(st.integers(0, 10**6), st.sampled_from(["token", "channel"]))
def test_int8_is_off_by_half_a_step_and_e4m3_by_a_sixteenth_of_the_number(seed: int, scale: str) -> None:
    key = torch.randn(8, 2, 16, generator=torch.Generator().manual_seed(seed))
    largest = key.abs().amax(-1 if scale == "token" else 0, keepdim=True)
    assert ((round_keys(key, "int8", scale) - key).abs() <= largest / 254 * 1.0001).all()
    least = largest / 448 * 2**-10  # half of E4M3's finest step, 2**-9
    assert ((round_keys(key, "e4m3", scale) - key).abs() <= torch.maximum(key.abs() / 16, least) * 1.0001).all()


def test_without_a_scale_e4m3_ends_at_448() -> None:
    key = torch.tensor([[[500.0, 448.0, -1000.0, 1.0]]])
    assert round_keys(key, "e4m3", "none").tolist() == [[[448.0, 448.0, -448.0, 1.0]]]


@pytest.mark.slow
def test_an_outlier_spoils_int8_with_a_scale_per_token_alone() -> None:
    ways = {"int8": {"form": "int8"}, "channel": {"form": "int8", "scale": "channel"}, "fp8": {"form": "e4m3"}}
    settings = ways | {f"{name}_outlier": way | {"outlier": 50.0} for name, way in ways.items()}
    keys = found(EightBits.model_validate({"settings": settings, "tokens": 48}))
    grown = {name: keys[f"{name}_outlier"]["error"] / keys[name]["error"] for name in ways}
    assert grown["int8"] > 5
    assert grown["channel"] == pytest.approx(1, abs=0.01)
    assert grown["fp8"] == pytest.approx(1, abs=0.2)
    assert all(one["kl"] > 0 for one in keys.values())


@pytest.mark.slow
def test_a_greedy_draft_stays_below_the_targets_own_likeliest_token() -> None:
    settings = {f"at_{10 * t:.0f}": {"temperature": t} for t in (0.0, 0.2, 1.0, 1.5)}
    settings["nearly"] = {"temperature": 0.001}
    rates = found(Temperatures.model_validate({"settings": settings, "texts": 2, "tokens": 48}))
    assert rates["at_0"]["greedy"] == rates["at_0"]["drawn"] == pytest.approx(rates["nearly"]["drawn"], abs=0.02)
    for one in rates.values():
        assert 0 < one["greedy"] <= one["sure"] <= 1
        assert one["drawn"] <= 1
    assert rates["at_2"]["greedy"] > rates["at_10"]["greedy"] > rates["at_15"]["greedy"]


@pytest.mark.slow
def test_a_turn_computes_its_own_tokens_and_less_than_a_block_unless_the_first_line_changes() -> None:
    ways = {"resent": False, "cached": True, "dated": True}
    settings = {name: {"enable_prefix_caching": on, "dated": name == "dated"} for name, on in ways.items()}
    counts = found(Turns.model_validate({"settings": settings, "turns": 4}))
    for one in counts.values():
        assert one["cached_tokens"] + one["computed_tokens"] == one["prompt_tokens"]
    assert counts["resent"]["cached_tokens"] == 0
    assert counts["dated"]["cached_tokens"] < SYSTEM_TOKENS
    assert counts["cached"]["prompt_tokens"] == counts["resent"]["prompt_tokens"]  # the same conversation
    per_turn = (counts["cached"]["prompt_tokens"] / 4 - counts["cached"]["last_prompt"]) / -1.5
    assert counts["cached"]["last_computed"] < per_turn + 20


def test_what_comes_after_the_first_other_token_is_not_compared() -> None:
    alone = [(1, 0.5), (2, 0.25), (3, 0.125), (4, 0.5)]
    other = [(1, 0.5), (2, 0.2), (9, 0.125), (4, 0.5)]
    assert compared(alone, other) == {"tokens": 4, "same_tokens": 2, "same_bits": 1, "off": pytest.approx(0.2)}
    assert compared(alone, alone[:3])["same_tokens"] == 3  # a round may end early
    assert compared(alone, other[2:])["off"] == 0


@pytest.mark.slow
def test_a_text_alone_has_the_same_bits_again_and_the_step_in_c_keeps_them_in_company() -> None:
    ways = {"again": {"kernels": "reference"}, "torch": {"kernels": "reference", "batch": 5}, "own": {"batch": 5}}
    kept = found(Company.model_validate({"settings": ways | {"rounds": {"speculative": "draft"}}, "tokens": 8}))
    assert {one["tokens"] for one in kept.values()} == {8}
    assert kept["again"]["same_bits"] == 8
    assert kept["torch"]["off"] < 1e-4
    if load_engine().computes_by_kernels and load_engine().device == "cpu":
        assert kept["own"]["same_bits"] == kept["rounds"]["same_bits"] == 8


@pytest.mark.slow
def test_kinds_of_layers_keep_what_their_formulas_say() -> None:
    """In float32, four layers, two KV heads of 16 numbers, a latent of 8 and 4 numbers; a window of two blocks."""
    kept = found(Kept(tokens=160))
    key, blocks = 2 * 2 * 16 * 4, 160 // BLOCK_SIZE
    assert kept.keys() == KINDS.keys()
    assert kept["full"]["bytes"] == 4 * key * 160
    assert kept["latent"]["bytes"] == 4 * (8 + 4) * 4 * 160
    assert kept["window"]["bytes"] == key * 160 + 3 * key * 32
    assert kept["window"]["blocks"] + kept["window"]["slid_out"] == 4 * blocks
    assert kept["hybrid"]["bytes"] == key * 160 + kept["hybrid"]["state_bytes"]
    assert kept["hybrid"]["state_bytes"] >= 3 * 4 * 32 * 32 * 4  # a matrix in each of four heads of three layers
    assert 0 < kept["hybrid"]["found"] < kept["full"]["found"] == 7 * BLOCK_SIZE
    for one in kept.values():
        assert one["lengths"][-1] == one["tokens"] == 160
        assert one["half_bytes"] == one["bytes_at"][one["lengths"].index(80)]


def test_models_keep_the_bytes_of_their_published_configurations() -> None:
    """DeepSeek V3: 61 layers of 512 + 64 numbers; gpt-oss 120B: 18 of 36 layers with a window of 128."""
    which = {"deepseek": "deepseek-v3", "oss": "gpt-oss-120b", "qwen": "qwen3.5-27b"}
    kept = found(Models(which=which, tokens=10_000))
    assert kept["deepseek"]["kept_bytes"] == 10_000 * 61 * 576 * 2
    assert kept["deepseek"]["token_bytes_unshared"] == 61 * 128 * (128 + 64 + 128) * 2
    assert kept["oss"]["kept_bytes"] == 18 * (10_000 + 128) * 2 * 8 * 64 * 2
    assert kept["oss"]["further_bytes"] == 18 * 2 * 8 * 64 * 2
    assert kept["qwen"]["kept_bytes"] == 10_000 * kept["qwen"]["further_bytes"] + kept["qwen"]["state_bytes"]
