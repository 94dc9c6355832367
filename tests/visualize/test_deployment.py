"""The Deploy page's inputs and its answer: what was found elsewhere is carried here, and every answer is one."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

from lab.memory.models import known
from visualize.memory import calculator
from visualize.panels.deploy import _answer
from visualize.run import settings
from visualize.vllm.deploy_sheet import answer
from visualize.vllm.deployment import CHOICES, DEFAULTS, LINK, NAMED, NAMES, OTHER, Inputs, from_link, to_inputs


def told(**changes: Any) -> dict[str, Any]:
    """What the page gets for these inputs."""
    line = _answer(*(getattr(Inputs(**changes), name) for name in NAMES))
    assert "<" not in line
    return json.loads(line)


def test_the_page_begins_with_a_command_for_one_gpu() -> None:
    first = told()
    assert first["command"].startswith("vllm serve meta-llama/Llama-3.1-8B \\\n")
    assert '"model": "meta-llama/Llama-3.2-1B"' in first["command"]
    assert not first["problem"]
    assert [row["gpus"] for row in first["splits"] if row["chosen"]] == ["1"]


def test_every_choice_has_an_answer() -> None:
    for model, weights in itertools.product(NAMED, CHOICES["weights"]):
        assert told(model=model, draft_model=model, weights=weights)["command"]
    others = {"speculation", "kv_format", "eviction", "block_size", "tensor_parallel", "gpu"}
    for name in others:
        for value in CHOICES[name]:
            assert told(**{name: value})["command"]


def test_a_setting_that_other_pages_have_begins_as_there_and_takes_their_values() -> None:
    """Their links leave out what is at its default, and are carried here as they are."""
    shared = set()
    for other in (settings, calculator):
        for name in set(NAMES) & set(other.DEFAULTS):
            shared.add(name)
            assert DEFAULTS[name] == other.DEFAULTS[name], name
            if name in CHOICES:
                assert set(CHOICES[name]) >= set(other.CHOICES[name]) - set(calculator.CHOICES["model"]), name
    assert shared >= {"speculation", "gamma", "kv_format", "prefix_caching", "block_size", "model", "gpu", "longest"}
    inputs, notices = from_link({"speculation": "ngram", "gamma": "7", "gpu": "t4", "prompt": "not this page's"})
    assert (inputs.speculation, inputs.gamma, inputs.gpu, notices) == ("ngram", 7, "t4", [])
    assert set(LINK.defaults) == set(NAMES)


def test_a_model_that_is_too_large_takes_more_gpus_and_says_when_they_are_too_few() -> None:
    large = told(model="llama-3.1-70b", gpu="l40s")
    assert "--tensor-parallel-size 4" in large["command"]
    assert not large["problem"]
    assert [row["holds"] for row in large["splits"]] == [False, False, True, True]
    few = told(model="llama-3.1-70b", gpu="l40s", tensor_parallel=2)
    assert few["problem"]
    assert "Not even the weights fit on 2 GPUs of 48 GiB" in few["say"]
    assert "--tensor-parallel-size 8" in told(model="llama-3.1-70b", gpu="t4")["command"]
    assert "room for at most " in told(at_once=2)["say"], "a draft's own keys and values come on top"
    assert "room for at most " not in told(at_once=2, speculation="off")["say"]
    assert "the others wait" in told(gpu="l4", tensor_parallel=1, at_once=5000)["say"]
    assert "would not start" in told(gpu="l4", tensor_parallel=1, longest=130_000)["say"]
    assert "cannot be split over 4 GPUs: choose 1." in told(model="falcon-7b", tensor_parallel=4, longest=2048)["say"]


def test_no_sequence_is_longer_than_the_model_was_made_for() -> None:
    for model in ("gpt-2", "llama-3.1-8b"):
        most = known()[model].shape.context_length
        longer = told(model=model, longest=most + 1, mean=100)
        assert longer["problem"]
        assert f"was made for {most:,} tokens at most" in longer["say"]
        assert not told(model=model, longest=most, mean=100, gpu="h200", at_once=1)["problem"]


def test_as_many_fit_as_in_the_blocks_of_the_command() -> None:
    """Which says nothing of blocks that vLLM does not take, and then they are of 16."""
    fits = {size: told(block_size=size)["splits"][0]["sequences"] for size in (4, 16, 128)}
    assert fits[4] == fits[16] != fits[128]
    assert "--block-size" not in told(block_size=4)["command"]


def test_what_does_not_fit_together_is_said() -> None:
    assert "the target's own tokenizer" in told(draft_model="qwen3-0.6b")["differences"][0]
    said = told(model="smollm2-1.7b", draft_model="smollm2-135m", tensor_parallel=2)["differences"]
    assert any("SmolLM2 135M cannot be split over 2 GPUs" in text for text in said)  # 9 query heads
    assert "quantised so" in told(weights="int4")["differences"][0]
    assert "cannot be turned off" in told(cache=False, kv_format="int8", speculation="off")["differences"][0]
    assert told(paged=False, prefix_caching=True, speculation="off")["command"].count("--no-enable-prefix-caching") == 1


def test_another_model_goes_by_its_name_and_is_not_looked_up() -> None:
    other = told(model=OTHER, hub=" owner/name ", speculation="off")
    assert other["command"].startswith("vllm serve owner/name \\\n")
    assert other["splits"] == []
    assert "worked out for known models" in other["say"]
    assert "'$(id)'" in told(model=OTHER, hub="$(id)", speculation="off")["command"]


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"model": OTHER}, "The target is a hub id"),
        ({"model": OTHER, "hub": "--help"}, "The target is a hub id"),
        ({"draft_model": OTHER}, "The draft is a hub id"),
        ({"at_once": 0}, "Sequences at once is a whole number from 1 to 10,000"),
        ({"at_once": math.nan}, "Sequences at once is a whole number"),
        ({"longest": "many"}, "Longest is a whole number"),
        ({"mean": 9999}, "mean length is between"),
        ({"gpu": OTHER, "memory": -1}, "memory, GiB is a number"),
        ({"max_num_batched_tokens": 1}, "Tokens in a step is a whole number from 64"),
        ({"speculation": "magic"}, "speculative is one of"),
    ],
)
def test_a_mistake_is_a_sentence(inputs: dict[str, Any], says: str) -> None:
    found = told(**inputs)
    assert says in found["say"]
    assert found["problem"]
    assert "command" not in found


def test_controls_and_links_are_read_alike() -> None:
    values = [getattr(Inputs(gamma=3), name) for name in NAMES]
    assert to_inputs(values) == from_link({"gamma": "3"})[0]
    assert answer(to_inputs(values))["command"] == told(gamma=3)["command"]
