"""Commands for vLLM: what a shell makes of them, which settings they leave out, and how many GPUs a model needs."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.config import EngineConfig
from lab.errors import ConfigError
from lab.memory.capacity import Deployment, Lengths
from lab.memory.catalogue import GiB
from lab.memory.model_memory import known_models
from lab.vllm.serve_command import (
    TENSOR_PARALLEL,
    differences,
    fewest_gpus,
    holds,
    left_behind,
    serve_command,
    sharded,
    splits,
)

PAGED = EngineConfig(paged=True)


def flags(command: str) -> dict[str, str | None]:
    """Each flag with its value, as a shell would pass them."""
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:2] == ["vllm", "serve"]
    found: dict[str, str | None] = {}
    for word in words[3:]:
        if word.startswith("--"):
            found[last := word] = None
        else:
            found[last] = word
    return found


def test_settings_become_flags() -> None:
    config = EngineConfig(paged=True, speculative="draft", num_speculative_tokens=6, enable_prefix_caching=True)
    found = flags(serve_command(config, "a/b", "c/d", 2, max_num_seqs=128, gpu_memory_utilization=0.9))
    speculative = {"method": "draft_model", "model": "c/d", "num_speculative_tokens": 6}
    assert json.loads(found.pop("--speculative-config")) == speculative
    assert found == {
        "--tensor-parallel-size": "2",
        "--gpu-memory-utilization": "0.9",
        "--max-num-seqs": "128",
        "--block-size": "16",
        "--enable-prefix-caching": None,
        "--per-request-spec-decode-metrics": "detailed",
    }
    int4 = replace(config, kv_dtype="int4", kv_cache_dtype_skip_layers="0 31 sliding_window")
    assert "--kv-cache-dtype-skip-layers 0 31 sliding_window \\\n" in serve_command(int4, "a/b", "c/d")
    assert "skip-layers" not in serve_command(replace(int4, kv_dtype="auto"), "a/b", "c/d")
    block = replace(config, rejection_sample_method="block")
    speculative["rejection_sample_method"] = "block"
    assert json.loads(flags(serve_command(block, "a/b", "c/d"))["--speculative-config"]) == speculative
    lookup = replace(PAGED, speculative="ngram", prompt_lookup_min=2, prompt_lookup_max=5)
    speculative = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
    assert json.loads(flags(serve_command(lookup, "a/b"))["--speculative-config"]) == speculative
    heads = flags(serve_command(replace(PAGED, speculative="mtp"), "a/b"))
    assert json.loads(heads["--speculative-config"]) == {"method": "mtp", "num_speculative_tokens": 4}
    assert flags(serve_command(PAGED, "a/b")) == {"--block-size": "16", "--no-enable-prefix-caching": None}
    for share, written in ((0.004, "0.004"), (0.996, "0.996"), (1 - 10 / 100, "0.9"), (1.0, "1")):
        assert flags(serve_command(PAGED, "a/b", gpu_memory_utilization=share))["--gpu-memory-utilization"] == written


@pytest.mark.parametrize(
    ("config", "word", "dtype"),
    [
        (EngineConfig(kv_cache=False), "turned off", None),
        (EngineConfig(), "contiguous", None),
        (replace(PAGED, kv_dtype="int8"), "fp8", "int8_per_token_head"),
        (replace(PAGED, kv_dtype="int4"), "per 32 numbers", "int4_per_token_head"),
        (replace(PAGED, kv_dtype="fp8"), "calibration", "fp8"),
        (replace(PAGED, kv_dtype="fp8_per_token_head"), "Triton", "fp8_per_token_head"),
        (replace(PAGED, kv_dtype="int4_per_token_head"), "Triton", "int4_per_token_head"),
        (replace(PAGED, block_size=8), "Blocks of 8", None),
        (replace(PAGED, num_blocks=99), "number of blocks", None),
        (replace(PAGED, eviction="priority"), "priorities", None),
        (replace(PAGED, prefill_attention="math"), "left to vLLM", None),
        (replace(PAGED, kernels="reference"), "Kernels", None),
        (replace(PAGED, cuda_graphs=False), "Kernels", None),
        (replace(PAGED, speculative="early_exit"), "does not speculate", None),
        (replace(PAGED, speculative="synthetic"), "does not speculate", None),
        (replace(PAGED, speculative="draft"), "likeliest token", None),
        (replace(PAGED, speculative="mtp", draft_sample_method="greedy"), "brings an MTP head", None),
        (replace(PAGED, speculative="draft", draft_sample_method="greedy"), "", None),
        (
            replace(PAGED, speculative="draft", draft_sample_method="greedy", rejection_sample_method="typical"),
            "lossless",
            None,
        ),
        (replace(PAGED, speculative="ngram"), "lookup", None),
        (replace(PAGED, enable_prefix_caching=True), "", None),
    ],
)
def test_each_difference_from_vllm_is_explained(config: EngineConfig, word: str, dtype: str | None) -> None:
    sentences = list(differences(config))
    assert len(sentences) == bool(word)
    assert all(word in sentence for sentence in sentences)
    found = flags(serve_command(config, "a/b", "c/d"))
    assert "--speculative-config" not in found or config.speculative in ("draft", "mtp", "ngram")
    assert found.get("--kv-cache-dtype") == dtype
    assert ("--block-size" in found) == (config.kv_cache and config.block_size == 16)


@pytest.mark.parametrize(("speculative", "verifies"), [("ngram", False), ("draft", True)])
def test_an_adaptive_window_is_left_out(speculative: str, verifies: bool) -> None:
    *_, sentence = differences(replace(PAGED, speculative=speculative, adaptive_window=True))
    assert "adaptive window is left out" in sentence
    assert ("enable_adaptive_verification" in sentence) == verifies


NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40).filter(
    lambda name: not name.startswith(("-", "~/"))
)


@given(NAMES, NAMES)
def test_names_are_quoted_for_the_shell(target: str, draft: str) -> None:
    command = serve_command(replace(PAGED, speculative="draft"), target, draft)
    assert shlex.split(command.replace("\\\n", ""))[2] == target
    assert json.loads(flags(command)["--speculative-config"])["model"] == draft


HOSTILE = "a/$(touch pwned)`id`'\";&|"


@pytest.mark.parametrize("name", [HOSTILE, "~/models/x", "~/models/my model", "~/", "~/$(touch pwned)'`id`"])
def test_a_real_shell_expands_the_home_folder_only(name: str) -> None:
    draft = HOSTILE if name == HOSTILE else "c/d"
    command = serve_command(replace(PAGED, speculative="draft"), name, draft)
    script, env = f'vllm() {{ printf "%s\\0" "$@"; }}\n{command}', {"HOME": "/home/me"}
    words = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env=env).stdout.split("\0")
    assert words[:2] == ["serve", name.replace("~/", "/home/me/")]
    assert json.loads(words[words.index("--speculative-config") + 1])["model"] == draft


DRAFTED = replace(PAGED, speculative="draft")


@pytest.mark.parametrize(
    ("config", "names", "more", "word"),
    [
        *((PAGED, (name,), {}, "hub id") for name in ("", "-rf", "a\nb", " a", "a\u202eb")),
        *((DRAFTED, ("a/b", name), {}, "hub id") for name in ("", "-rf", " a")),
        (DRAFTED, ("a/b", "~/models/x"), {}, "absolute path"),  # in JSON, where no shell expands ~
        (DRAFTED, ("a/b",), {}, "name of a draft"),
        (PAGED, ("a/b",), {"tensor_parallel": 0}, "tensor_parallel"),
        (PAGED, ("a/b",), {"max_model_len": -5}, "max_model_len"),
        (PAGED, ("a/b",), {"max_num_seqs": 2.5}, "max_num_seqs"),
        (PAGED, ("a/b",), {"gpu_memory_utilization": 0.0}, "gpu_memory_utilization"),
        (PAGED, ("a/b",), {"gpu_memory_utilization": 1.7}, "gpu_memory_utilization"),
        (PAGED, ("a/b",), {"dtype": "; rm"}, "dtype"),
        (PAGED, ("a/b",), {"max_num_seqs": 65, "max_num_batched_tokens": 64}, "tokens as sequences"),
        (DRAFTED, ("a/b", "c/d"), {"max_num_batched_tokens": 4}, "at least 5 tokens"),
    ],
)
def test_invalid_arguments_are_refused(config: EngineConfig, names: tuple, more: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        serve_command(config, *names, **more)


def test_the_token_budget_must_cover_every_sequence() -> None:
    for config in (PAGED, replace(PAGED, speculative="draft"), replace(PAGED, speculative="ngram")):
        command = serve_command(config, "a/b", "c/d", max_num_seqs=65, max_num_batched_tokens=65)
        assert "--max-num-batched-tokens 65" in command
    assert "batched" not in serve_command(PAGED, "a/b", max_num_seqs=2048)
    assert "--max-num-batched-tokens 2049" in serve_command(PAGED, "a/b", max_num_seqs=2049), "vLLM's own may be 2,048"
    assert "batched" not in serve_command(PAGED, "a/b", max_num_seqs=2049, limit=8192)
    draft = serve_command(replace(PAGED, speculative="draft"), "a/b", "c/d", max_num_seqs=2049)
    assert "--max-num-batched-tokens 12294" in draft, "4 draft tokens, the last token, and a place for the draft"


@given(
    st.sampled_from(["off", "draft", "mtp", "ngram", "early_exit", "synthetic"]),
    st.integers(1, 12),
    st.integers(1, 60),
    st.integers(1, 1000),
)
def test_sequences_that_a_step_does_not_advance(speculative: str, gamma: int, sequences: int, tokens: int) -> None:
    """vLLM 0.33 counts a step's tokens twice: what the target computes, and what the draft model gets to see."""
    config = replace(PAGED, speculative=speculative, num_speculative_tokens=gamma)
    kept, wanted = int(speculative == "draft"), 1 + gamma * (speculative in ("draft", "mtp", "ngram"))
    computed = seen = tokens
    whole = 0
    for _ in range(sequences):
        if not computed or seen <= kept:
            break
        given = min(wanted, computed, seen - kept)
        computed -= given
        seen -= given + kept
        whole += given == wanted
    said = list(left_behind(config, sequences, tokens, 1))
    assert len(said) == (whole < sequences)
    assert all(f"A step of {tokens:,} tokens advances {whole:,} of {sequences:,} sequences" in shown for shown in said)


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    model = draw(st.sampled_from(list(known_models().values())))
    memory, longest = draw(st.integers(8, 200)), draw(st.integers(100, 8000))
    lengths = Lengths(draw(st.integers(1, longest)), longest)
    return Deployment(shape=model.shape, parameters=model.parameters, memory=memory * GiB, lengths=lengths)


@given(deployments(), st.integers(1, 500))
def test_the_fewest_gpus_are_enough_and_no_smaller_split_is(deployment: Deployment, wanted: int) -> None:
    found = splits(deployment)
    assert found[1] == deployment
    fewest = fewest_gpus(deployment, wanted)
    for gpus, shard in found.items():
        assert shard.weight_bytes * gpus >= deployment.weight_bytes
        assert shard.token_bytes * gpus >= deployment.token_bytes
        assert not holds(shard, wanted) or fewest <= gpus
    assert fewest is None or holds(found[fewest], wanted)


def test_a_large_model_needs_several_gpus_and_its_heads_must_be_divisible() -> None:
    models = known_models()
    llama, falcon = models["llama-3.1-70b"], models["falcon-7b"]
    lengths = Lengths(500, 4096)
    large = Deployment(shape=llama.shape, parameters=llama.parameters, memory=80 * GiB, lengths=lengths)
    assert fewest_gpus(large, 1) == 2  # 131 GiB of weights in twice 72
    assert fewest_gpus(large, 100) == 4  # two leave 13 GiB for the cache: 80 sequences
    assert fewest_gpus(replace(large, lengths=Lengths(500, 50_000)), 1) == 4  # one of the longest takes 15 GiB
    assert sharded(large, 8).token_bytes * 8 == large.token_bytes
    one_kv_head = Deployment(shape=falcon.shape, parameters=falcon.parameters, memory=80 * GiB, lengths=lengths)
    assert set(splits(one_kv_head)) == {1}  # 71 query heads
    with pytest.raises(ConfigError, match="71 query heads and 1 KV head cannot be split over 2"):
        sharded(one_kv_head, 2)
    assert max(TENSOR_PARALLEL) == 8
