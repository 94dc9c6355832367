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
    own_limit,
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


def test_a_draft_becomes_a_speculative_config() -> None:
    config = EngineConfig(paged=True, speculative="draft", num_speculative_tokens=6, enable_prefix_caching=True)
    command = serve_command(config, "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B", 2, max_num_seqs=128, gpu_memory_utilization=0.9)
    found = flags(command)
    assert json.loads(found.pop("--speculative-config")) == {
        "method": "draft_model",
        "model": "Qwen/Qwen3-0.6B",
        "num_speculative_tokens": 6,
    }
    assert found == {
        "--tensor-parallel-size": "2",
        "--gpu-memory-utilization": "0.9",
        "--max-num-seqs": "128",
        "--block-size": "16",
        "--enable-prefix-caching": None,
        "--per-request-spec-decode-metrics": "detailed",
    }


def test_prompt_lookup_passes_its_window_and_the_default_few_flags() -> None:
    config = replace(PAGED, speculative="ngram", prompt_lookup_min=2, prompt_lookup_max=5)
    said = json.loads(flags(serve_command(config, "a/b"))["--speculative-config"])
    assert said == {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
    assert flags(serve_command(PAGED, "a/b")) == {"--block-size": "16", "--no-enable-prefix-caching": None}


@pytest.mark.parametrize(
    ("config", "says", "flag"),
    [
        (EngineConfig(kv_cache=False), "cannot be turned off", None),
        (EngineConfig(), "contiguous sequences have no counterpart", None),
        (replace(PAGED, kv_dtype="int8"), "fp8 is as small", ("--kv-cache-dtype", "int8_per_token_head")),
        (replace(PAGED, kv_dtype="int4"), "a scale per 32 numbers", ("--kv-cache-dtype", "int4_per_token_head")),
        (replace(PAGED, kv_dtype="int4"), "does not start with heads of another size, such as 80 or 96", None),
        (replace(PAGED, block_size=8), "Blocks of 8 are left out", None),
        (replace(PAGED, num_blocks=99), "number of blocks is left out", None),
        (replace(PAGED, eviction="priority"), "cache priorities have no counterpart", None),
        (replace(PAGED, prefill_attention="math"), "left to vLLM", None),
        (replace(PAGED, kernels="reference"), "Kernels, CUDA graphs and torch.compile are left to vLLM", None),
        (replace(PAGED, cuda_graphs=False), "Kernels, CUDA graphs and torch.compile are left to vLLM", None),
        (replace(PAGED, speculative="early_exit"), "does not speculate", None),
        (replace(PAGED, speculative="synthetic"), "does not speculate", None),
        (replace(PAGED, speculative="draft"), "likeliest token", None),
        (replace(PAGED, speculative="ngram"), "verifies the last token in place of guesses", None),
    ],
)
def test_each_difference_from_vllm_is_explained(config: EngineConfig, says: str, flag: tuple[str, str] | None) -> None:
    [sentence] = differences(config)
    assert says in sentence
    found = flags(serve_command(config, "a/b", "c/d"))
    assert "--speculative-config" not in found or config.speculative in ("draft", "ngram")
    if flag:
        assert found[flag[0]] == flag[1]
    assert ("--block-size" in found) == (config.kv_cache and config.block_size == 16)


def test_settings_that_vllm_shares_need_no_explanation() -> None:
    assert list(differences(replace(PAGED, enable_prefix_caching=True))) == []


def test_an_adaptive_window_is_said_to_be_left_out() -> None:
    *_, said = differences(replace(PAGED, speculative="ngram", adaptive_window=True))
    assert "adaptive window is left out" in said
    assert "enable_adaptive_verification" not in said


def test_an_adaptive_window_with_a_draft_mentions_adaptive_verification() -> None:
    *_, said = differences(replace(PAGED, speculative="draft", adaptive_window=True))
    assert "adaptive window is left out" in said
    assert '"enable_adaptive_verification"' in said


NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40).filter(
    lambda name: not name.startswith(("-", "~/"))
)


@given(NAMES, NAMES)
def test_names_are_quoted_for_the_shell(target: str, draft: str) -> None:
    command = serve_command(replace(PAGED, speculative="draft"), target, draft)
    assert shlex.split(command.replace("\\\n", ""))[2] == target
    assert json.loads(flags(command)["--speculative-config"])["model"] == draft


def test_a_real_shell_passes_hostile_names_unchanged() -> None:
    hostile = "a/$(touch pwned)`id`'\";&|"
    command = serve_command(replace(PAGED, speculative="draft"), hostile, hostile)
    script = f'vllm() {{ printf "%s\\0" "$@"; }}\n{command}'
    words = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split("\0")
    assert words[:2] == ["serve", hostile]
    assert json.loads(words[words.index("--speculative-config") + 1])["model"] == hostile


@pytest.mark.parametrize("folder", ["models/x", "models/my model", "", "$(touch pwned)'`id`"])
def test_a_real_shell_expands_the_home_folder_only(folder: str) -> None:
    script = f'vllm() {{ printf "%s\\0" "$@"; }}\n{serve_command(PAGED, f"~/{folder}")}'
    env = {"HOME": "/home/me"}
    words = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env=env).stdout.split("\0")
    assert words[:2] == ["serve", f"/home/me/{folder}"]


def test_the_folder_of_a_draft_must_be_an_absolute_path() -> None:
    """It is part of a JSON value, in which no shell expands ~."""
    with pytest.raises(ConfigError, match="Give the draft's folder as an absolute path, not '~/models/x'"):
        serve_command(replace(PAGED, speculative="draft"), "a/b", "~/models/x")


@pytest.mark.parametrize("name", ["", "-rf", "a\nb", " a", "a\u202eb"])
def test_an_invalid_name_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError, match="hub id"):
        serve_command(PAGED, name)
    with pytest.raises(ConfigError, match="hub id"):
        serve_command(replace(PAGED, speculative="draft"), "a/b", name)


def test_a_missing_draft_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match="needs the name of a draft"):
        serve_command(replace(PAGED, speculative="draft"), "a/b")


def test_the_token_budget_must_cover_every_sequence() -> None:
    with pytest.raises(ConfigError, match="at least as many tokens as sequences"):
        serve_command(PAGED, "a/b", max_num_seqs=65, max_num_batched_tokens=64)
    for config in (PAGED, replace(PAGED, speculative="draft"), replace(PAGED, speculative="ngram")):
        command = serve_command(config, "a/b", "c/d", max_num_seqs=65, max_num_batched_tokens=65)
        assert "--max-num-batched-tokens 65" in command
    assert "batched" not in serve_command(PAGED, "a/b", max_num_seqs=2048)
    assert "--max-num-batched-tokens 2049" in serve_command(PAGED, "a/b", max_num_seqs=2049), "vLLM's own may be 2,048"
    assert "batched" not in serve_command(PAGED, "a/b", max_num_seqs=2049, limit=8192)
    draft = serve_command(replace(PAGED, speculative="draft"), "a/b", "c/d", max_num_seqs=2049)
    assert "--max-num-batched-tokens 12294" in draft, "4 guesses, the last token, and a place for the draft"


def test_vllms_own_limit_depends_on_the_gpu() -> None:
    assert [own_limit(gib * GiB) for gib in (16, 69, 70, 141, 160, 192)] == [2048, 2048, 8192, 8192, 16384, 16384]
    assert own_limit(80 * GiB, a100=True) == 2048


def test_a_step_must_hold_more_than_a_drafts_guesses() -> None:
    for speculative in "draft", "ngram":
        config = replace(PAGED, speculative=speculative, num_speculative_tokens=5)
        assert "--max-num-batched-tokens 6" in serve_command(config, "a/b", "c/d", max_num_batched_tokens=6)
    assert "--max-num-batched-tokens 5" in serve_command(config, "a/b", max_num_batched_tokens=5), "lookup makes none"
    with pytest.raises(ConfigError, match="5 tokens and a draft that makes 5 guesses: allow at least 6 tokens"):
        serve_command(replace(config, speculative="draft"), "a/b", "c/d", max_num_batched_tokens=5)


@given(
    st.sampled_from(["off", "draft", "ngram", "early_exit", "synthetic"]),
    st.integers(1, 12),
    st.integers(1, 60),
    st.integers(1, 1000),
)
def test_sequences_that_a_step_does_not_advance(speculative: str, gamma: int, sequences: int, tokens: int) -> None:
    """vLLM 0.33 counts a step's tokens twice: what the target computes, and what the draft model gets to see."""
    config = replace(PAGED, speculative=speculative, num_speculative_tokens=gamma)
    kept, wanted = int(speculative == "draft"), 1 + gamma * (speculative in ("draft", "ngram"))
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
    assert all(f"A step of {tokens:,} tokens advances {whole:,} of {sequences:,} sequences" in told for told in said)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tensor_parallel": 0}, "tensor_parallel must be a whole number from 1"),
        ({"max_model_len": -5}, "max_model_len must be a whole number from 1"),
        ({"max_num_seqs": 2.5}, "max_num_seqs must be a whole number from 1"),
        ({"gpu_memory_utilization": 0.0}, "a share above 0"),
        ({"gpu_memory_utilization": 1.7}, "a share above 0"),
        ({"dtype": "; rm"}, "dtype must be one of auto, bfloat16"),
    ],
)
def test_values_that_vllm_refuses_are_refused_with_the_reason(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        serve_command(PAGED, "a/b", **given)


def test_a_memory_share_is_not_rounded_to_0_or_1() -> None:
    for share, written in ((0.004, "0.004"), (0.996, "0.996"), (0.9, "0.9"), (1 - 10 / 100, "0.9"), (1.0, "1")):
        flag = "--gpu-memory-utilization "
        assert serve_command(PAGED, "a/b", gpu_memory_utilization=share).partition(flag)[2].split()[0] == written


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
    for none in (0, -1, 2.0):
        with pytest.raises(ConfigError, match="tensor_parallel must be a whole number"):
            sharded(large, none)
    assert max(TENSOR_PARALLEL) == 8
