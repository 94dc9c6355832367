"""The Deploy page's inputs and its answer: settings carry over from other pages, and every choice has an answer."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

from lab.memory.model_memory import known_models
from lab.vllm.serve_command import splits
from visualize.memory_inputs import FORM as MEMORY
from visualize.pages.deploy.deploy_report import _needed
from visualize.pages.deploy.deployment import FORM, NAMED, OTHER, DeployInputs, from_link
from visualize.pages.deploy.page import _answer
from visualize.run_settings import FORM as LAB

HYBRID, LATENT = "qwen3.6-35b-a3b", "glm-4.7-flash"


def said(**changes: Any) -> dict[str, Any]:
    """The page's answer for these inputs."""
    line = _answer(*(getattr(DeployInputs(**changes), name) for name in FORM.names))
    assert "<" not in line
    return json.loads(line)


def test_every_choice_has_an_answer() -> None:
    for model, weights in itertools.product(NAMED, FORM["weights"].options):
        command = said(model=model, draft_model=model, weights=weights)["command"]
        assert ("--dtype float32" in command) == (weights == "float32")
    others = {"speculative", "kv_dtype", "eviction", "block_size", "tensor_parallel", "gpu"}
    for name in others:
        for value in FORM[name].options:
            assert said(**{name: value})["command"]
    assert "--kv-cache-dtype-skip-layers 0 31" in said(kv_dtype="int8", kv_cache_dtype_skip_layers="0 31")["command"]
    assert "names layer 99" in said(kv_dtype="int8", kv_cache_dtype_skip_layers="99")["say"]


def test_shared_settings_have_the_defaults_and_choices_of_other_pages() -> None:
    """Links of other pages omit defaults and are carried over unchanged."""
    shared = set()
    for other in (LAB, MEMORY):
        for name in set(FORM.names) & set(other.names):
            shared.add(name)
            assert FORM[name].default == other[name].default, name
            assert FORM[name].options.keys() >= other[name].options.keys() - MEMORY["model"].options.keys(), name
    assert shared >= {"speculative", "num_speculative_tokens", "kv_dtype", "block_size", "model", "gpu", "longest"}
    inputs, notices = from_link(
        {"speculative": "ngram", "num_speculative_tokens": "7", "gpu": "t4", "prompt": "not this page's"}
    )
    assert (inputs.speculative, inputs.num_speculative_tokens, inputs.gpu, notices) == ("ngram", 7, "t4", [])


def test_a_large_model_is_split_over_gpus_and_too_few_are_reported() -> None:
    large = said(model="llama-3.1-70b", gpu="l40s")
    assert "--tensor-parallel-size 4" in large["command"]
    assert not large["problem"]
    assert [row["holds"] for row in large["splits"]] == [False, False, True, True]
    few = said(model="llama-3.1-70b", gpu="l40s", tensor_parallel=2)
    assert few["problem"]
    assert "Not even the weights fit on 2 GPUs of 48 GiB" in few["say"]
    assert "--tensor-parallel-size 8" in said(model="llama-3.1-70b", gpu="t4")["command"]
    other = said(at_once=2, draft_model=OTHER, draft_hub="owner/draft")
    assert "room for at most " in other["say"], "the memory of an unknown draft is not included"
    assert any("weights, keys and values come on top" in text for text in other["differences"])
    for known_to_the_byte in (said(at_once=2), said(at_once=2, speculative="off")):
        assert "room for at most " not in known_to_the_byte["say"]
        assert not any("on top" in text for text in known_to_the_byte["differences"])
    assert "the others wait" in said(gpu="l4", tensor_parallel=1, at_once=5000)["say"]
    tight = {"gpu": OTHER, "memory": 17.5, "mean": 4096, "tensor_parallel": 1, "speculative": "off"}
    of_one = "On 1 GPU of 17.5 GiB there is room for 1 sequence"
    assert said(**tight, at_once=1)["say"] == f"{of_one}, and 1 sequence at once is asked for."
    assert said(**tight, at_once=2)["say"] == f"{of_one} on average, not for 2 sequences at once: the others wait."
    assert "would not start" in said(gpu="l4", tensor_parallel=1, longest=130_000)["say"]


def test_a_known_draft_takes_its_memory_from_the_same_gpus() -> None:
    alone, both = (said(gpu="l4", tensor_parallel=1, speculative=how)["splits"][0] for how in ("off", "draft"))
    assert (alone["token"], both["token"]) == ("128 KiB", "160 KiB")  # 16 layers of 8 heads of 64 numbers
    beside = said(gpu="l4", tensor_parallel=1)
    assert both["sequences"] == "56"
    assert beside["problem"]
    assert "--tensor-parallel-size 2" in said(gpu="l4")["command"]
    draft = known_models()["llama-3.2-1b"]
    for weights, bits in (("float32", 32), ("int8", 16), ("int4", 16)):
        with_draft, without = (
            _needed(DeployInputs(weights=weights), known_models()["llama-3.1-8b"], one).weight_bytes
            for one in (draft, None)
        )
        assert with_draft - without == draft.parameters * bits // 8, weights


def test_each_of_a_pair_keeps_its_own_and_gpus_share_recurrent_states() -> None:
    """Of Gemma 3 1B's 26 layers 22 keep 512 tokens, of 27B's 62 layers 52 keep 1,024."""
    models, inputs = known_models(), DeployInputs(longest=4096, mean=4096)
    pair = _needed(inputs, models["gemma-3-27b"], models["gemma-3-1b"])
    target, draft = (1024 * 52 + 4096 * 10) * 16 * 128, (512 * 22 + 4096 * 4) * 256
    assert pair.sequence_bytes(4096) == pytest.approx(2 * 2 * (target + draft))
    hybrid, other = models["qwen3.6-27b"], models["lfm2-1.2b"]
    pair = _needed(inputs, hybrid, other)
    assert pair.state_bytes == hybrid.state_bytes + other.state_bytes
    assert splits(pair)[4].state_bytes == pair.state_bytes // 4


def test_what_vllm_makes_of_layers_of_other_kinds_is_told() -> None:
    """Users measured blocks of 2,096 tokens for Qwen3.6 35B-A3B with FP8: its state over a layer's bytes per token."""
    hybrid, latent = (" ".join(said(model=it, kv_dtype="fp8", gpu="h200")["differences"]) for it in (HYBRID, LATENT))
    assert "here about 2,200 tokens whatever --block-size says" in hybrid
    assert "model's dtype or in FP8" not in hybrid + latent
    assert "whole latents" in " ".join(said(model=LATENT, tensor_parallel=4)["differences"])
    assert "choose Auto or FP8" in " ".join(said(model=LATENT, kv_dtype="int8")["differences"])
    plain = " ".join(said(kv_dtype="int8")["differences"])
    assert not any(word in plain for word in ("hybrid", "latents", "MLA"))


def test_sequences_are_counted_in_blocks_of_the_commands_size() -> None:
    """The command omits block sizes that vLLM does not accept: blocks are then of 16 tokens."""
    fits = {size: said(block_size=size)["splits"][0]["sequences"] for size in (4, 16, 128)}
    assert fits[4] == fits[16] != fits[128]
    assert "--block-size" not in said(block_size=4)["command"]
    assert "quantised that way" in said(weights="int4")["differences"][0]
    for without in ("kv_cache", "paged"):  # a link from the Lab may come without: these switches are out of sight here
        found = said(enable_prefix_caching=True, kv_dtype="int8", speculative="off", **{without: False})
        assert "    --enable-prefix-caching" in found["command"]
        assert "    --kv-cache-dtype int8_per_token_head" in found["command"]
        assert found["differences"][0].startswith("vLLM always ")


def test_a_draft_with_another_vocabulary_is_refused_and_others_are_named() -> None:
    """vLLM does not start with the command then, whatever else is right."""
    other = said(model="qwen3-8b", gpu="h200", at_once=1)
    assert other["problem"]
    assert other["say"].startswith("Llama 3.2 1B has a vocabulary of 128,256 and Qwen3 8B one of 151,936, and vLLM")
    assert "with the target's tokenizer, like Qwen3 0.6B or Qwen3 4B. (" in other["say"]
    assert '"use_heterogeneous_vocab": true' in other["say"]
    assert not said(model="qwen3-8b", draft_model="qwen3-0.6b", gpu="h200", at_once=1)["problem"]
    assert not said(model="qwen3-8b", speculative="off", gpu="h200", at_once=1)["problem"]
    assert "choose a draft with the target's tokenizer. (" in said(model="gpt-2", longest=1000, mean=100)["say"]


def test_a_step_that_does_not_advance_all_sequences_is_reported() -> None:
    def about(**inputs: Any) -> list[str]:
        return [text for text in said(**inputs)["differences"] if text.startswith("A step of")]

    assert about(at_once=64, max_num_batched_tokens=384, num_speculative_tokens=4) == []
    [text] = about(at_once=64, max_num_batched_tokens=383, num_speculative_tokens=4)
    assert "advances 63 of 64 sequences by a whole round: each takes 6 tokens" in text
    assert about(at_once=64, max_num_batched_tokens=64, speculative="off") == []
    assert about(at_once=1365, num_speculative_tokens=4) == []
    [text] = about(at_once=1366, num_speculative_tokens=4)
    assert text.startswith("A step of 8,192 tokens, which is what this GPU gets, advances 1,365 of 1,366 sequences")
    [text] = about(at_once=410, num_speculative_tokens=4, speculative="ngram", gpu="a100-80-gb")
    assert text.startswith("A step of 2,048 tokens, which is what this GPU gets, advances 409 of 410 sequences")
    assert about(at_once=410, num_speculative_tokens=4, speculative="ngram", gpu=OTHER, memory=70) == []
    assert len(about(at_once=8192)) == 1
    assert about(at_once=8193) == [], "the command asks for enough"


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"model": OTHER}, "The target must be a hub id"),
        ({"model": OTHER, "hub": "--help"}, "The target must be a hub id"),
        ({"draft_model": OTHER}, "The draft must be a hub id"),
        ({"at_once": 0}, "Sequences at once must be a whole number from 1 to 10,000"),
        ({"at_once": math.nan}, "Sequences at once must be a whole number"),
        ({"longest": "many"}, "Longest must be a whole number"),
        ({"mean": 9999}, "mean length must be between"),
        ({"gpu": OTHER, "memory": -1}, "Memory, GiB must be a number"),
        ({"max_num_batched_tokens": 1}, "Tokens in a step must be a whole number from 64"),
        ({"speculative": "magic"}, "speculative must be one of"),
    ],
)
def test_a_mistake_is_explained(inputs: dict[str, Any], says: str) -> None:
    found = said(**inputs)
    assert says in found["say"]
    assert found["problem"]
    assert "command" not in found
