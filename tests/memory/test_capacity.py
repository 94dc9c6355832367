"""What fits: properties that hold for any model and device, and agreement with what the engine allocates."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.config import EngineConfig
from lab.engine.memory_budget import Budget
from lab.errors import ConfigError
from lab.kv_cache.kv_cache import KVCache
from lab.memory.capacity import MOST_PARAMETERS, POLICIES, Deployment, Lengths
from lab.memory.catalogue import GPU_KEYS, GPUS, MOST_GIB, WEIGHT_BITS, GiB, device_bytes
from lab.memory.model_memory import known_models
from lab.models.loader import WEIGHTS, load_model

FORMATS = ("auto", "int8", "int4")


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    model = draw(st.sampled_from(list(known_models().values())))
    longest = draw(st.integers(1, 200_000))
    return Deployment(
        shape=model.shape,
        parameters=model.parameters,
        weights=draw(st.sampled_from(list(WEIGHT_BITS))),
        kv_dtype=draw(st.sampled_from(FORMATS)),
        memory=draw(st.integers(GiB, 400 * GiB)),
        set_aside=draw(st.floats(0, 0.9)),
        lengths=Lengths(draw(st.floats(1, longest)), longest),
        block_size=draw(st.sampled_from((1, 8, 16, 128))),
    )


@given(deployments())
def test_paged_storage_holds_at_least_as_many_sequences(deployment: Deployment) -> None:
    assert deployment.sequences("paged") >= deployment.sequences("contiguous") >= 0


@given(deployments())
def test_fewer_bits_mean_fewer_bytes_and_at_least_as_many_sequences(deployment: Deployment) -> None:
    plain, int8, int4 = (replace(deployment, kv_dtype=kv_dtype) for kv_dtype in FORMATS)
    assert plain.token_bytes > int8.token_bytes > int4.token_bytes
    for policy in POLICIES:
        assert plain.sequences(policy) <= int8.sequences(policy) <= int4.sequences(policy)


@pytest.mark.parametrize("wrong", [{"block_size": 16.5}, {"block_size": 0}, {"parameters": -5}, {"parameters": 1e9}])
def test_invalid_sizes_are_refused(wrong: dict[str, float]) -> None:
    (name,) = wrong
    model = known_models()["llama-3.1-8b"]
    settings = {"parameters": model.parameters, "memory": 80 * GiB, "lengths": Lengths(500, 4096)} | wrong
    with pytest.raises(ConfigError, match=name):
        Deployment(shape=model.shape, **settings)


def test_an_unknown_policy_is_refused() -> None:
    model = known_models()["llama-3.1-8b"]
    made = Deployment(shape=model.shape, parameters=model.parameters, memory=80 * GiB, lengths=Lengths(500, 4096))
    with pytest.raises(ConfigError, match="'contiguous', 'paged', not 'nope'"):
        made.sequences("nope")


@given(deployments(), st.integers(0, 100 * GiB))
def test_more_memory_never_holds_fewer_sequences(deployment: Deployment, more: int) -> None:
    larger = replace(deployment, memory=deployment.memory + more)
    for policy in POLICIES:
        assert larger.sequences(policy) >= deployment.sequences(policy)


@given(deployments(), st.floats(0, 1))
def test_at_least_as_many_shorter_sequences_fit(deployment: Deployment, shorter: float) -> None:
    lengths = deployment.lengths
    shorter = replace(deployment, lengths=Lengths(1 + shorter * (lengths.mean - 1), lengths.longest))
    assert shorter.sequences("paged") >= deployment.sequences("paged")
    assert shorter.sequences("contiguous") == deployment.sequences("contiguous")  # it reserves for the longest anyway


@given(deployments(), st.sampled_from(POLICIES))
def test_the_parts_of_the_memory_add_up(deployment: Deployment, policy: str) -> None:
    split = deployment.split(policy)
    assert sum(split) == pytest.approx(deployment.memory)
    assert min(split) >= -1e-6 * deployment.memory
    if deployment.cache_bytes <= 0:
        assert split.tokens == deployment.sequences(policy) == 0


def llama(**changes: object) -> Deployment:
    model = known_models()["llama-3.1-8b"]
    return replace(
        Deployment(shape=model.shape, parameters=model.parameters, memory=80 * GiB, lengths=Lengths(1000, 8192)),
        **changes,
    )


def test_a_model_worked_out_by_hand() -> None:
    """32 layers x 8 heads x 2 x 128 numbers x 2 bytes, and so on."""
    assert llama().token_bytes == 131_072
    assert llama(kv_dtype="int8").token_bytes == 32 * 8 * 2 * (128 + 4)
    assert llama(kv_dtype="int4").token_bytes == 32 * 8 * 2 * (64 + 4 * 2)
    assert llama(weights="float32").token_bytes == 2 * 131_072
    assert llama().weight_bytes == 2 * 8_030_261_248
    assert llama().cache_bytes == 72 * GiB - 16_060_522_496
    assert llama().sequences("contiguous") == (72 * GiB - 16_060_522_496) // (8192 * 131_072) == 57
    split = llama().split("contiguous")
    assert (split.weights, split.set_aside) == (16_060_522_496, 8 * GiB)
    assert (split.tokens, split.vain) == (57 * 1000 * 131_072, 57 * (8192 - 1000) * 131_072)
    tables = 2 * 128_256 * 4096  # which AWQ and GPTQ leave in 16 bits
    assert llama(weights="int4").weight_bytes == 2 * tables + (8_030_261_248 - tables) // 2
    assert llama(weights="int8").weight_bytes == 2 * tables + (8_030_261_248 - tables)
    tied = known_models()["qwen3-0.6b"]
    small = replace(llama(weights="int4"), shape=tied.shape, parameters=tied.parameters)
    assert small.weight_bytes == 2 * 151_936 * 1024 + (tied.parameters - 151_936 * 1024) // 2


def test_sequences_of_one_length_fit_equally_often_with_both_policies() -> None:
    same = llama(lengths=Lengths(8192, 8192))
    assert same.sequences("paged") == same.sequences("contiguous")
    assert same.split("paged") == same.split("contiguous")


@pytest.fixture(scope="module")
def pair():
    return [load_model(WEIGHTS / name, name=name, place="cpu", dtype=torch.float32) for name in ("target", "draft")]


@pytest.mark.parametrize("kv_dtype", FORMATS)
def test_computed_sizes_equal_what_the_engine_allocates(pair, kv_dtype: str) -> None:
    """For the embedded pair: the bytes of every tensor of a real cache, and the blocks that the budget allows."""
    target, draft = pair
    both = [
        Deployment(
            shape=known_models()[f"stories-{name}"].shape,
            parameters=known_models()[f"stories-{name}"].parameters,
            weights="float32",
            kv_dtype=kv_dtype,
            memory=GiB,
            lengths=Lengths(100, 1024),
        )
        for name in ("target", "draft")
    ]
    setting = Budget(target, draft).cache_config(EngineConfig(kv_dtype=kv_dtype, paged=True, num_blocks=7))
    cache = KVCache(setting, target, draft)
    for deployment, storage, model in zip(both, (cache.target, cache.draft), pair, strict=True):
        held = sum(tensor.untyped_storage().nbytes() for layer in storage.layers for tensor in layer.tensors)
        assert held == 7 * 16 * deployment.token_bytes
        weights = {parameter.data_ptr(): parameter.nbytes for parameter in model.model.parameters()}
        assert sum(weights.values()) == deployment.weight_bytes
    assert Budget(target, draft).pool_bytes(setting) == 7 * 16 * sum(each.token_bytes for each in both)
    room = 40 * 16 * both[0].token_bytes + 5  # forty blocks of the target alone, and a little more
    alone = replace(both[0], memory=both[0].weight_bytes + room, set_aside=0.0)
    granted = Budget(target, None, limit=room).cache_config(EngineConfig(kv_dtype=kv_dtype)).num_blocks
    assert granted == alone.num_blocks == 40


@given(st.integers(1, 3000), st.floats(0, 1), st.sampled_from((1, 3, 16, 128)))
def test_mean_and_blocks_equal_the_sums_over_all_lengths(longest: int, share: float, block_size: int) -> None:
    """Each length weighted with its probability."""
    mean = 1 + share * (longest - 1)
    lengths = Lengths(mean, longest)
    # P(length = n) from P(length > n) = r^n, truncated at the longest
    r = torch.tensor(lengths.log_survival, dtype=torch.float64).exp()
    over = r ** torch.arange(longest + 1, dtype=torch.float64)
    over[-1] = 0
    exactly = over[:-1] - over[1:]
    n = torch.arange(1, longest + 1, dtype=torch.float64)
    assert float(exactly.sum()) == pytest.approx(1)
    assert float((exactly * n).sum()) == pytest.approx(mean, rel=1e-6)
    assert lengths.mean_blocks(block_size) == pytest.approx(float((exactly * (n / block_size).ceil()).sum()), rel=1e-6)


def test_mean_and_blocks_agree_with_a_sample_of_lengths() -> None:
    lengths, draw = Lengths(300, 2000), random.Random(1)

    def one() -> int:
        length, r = 1, torch.tensor(lengths.log_survival).exp().item()
        while length < lengths.longest and draw.random() < r:
            length += 1
        return length

    sample = [one() for _ in range(3000)]
    assert sum(sample) / 3000 == pytest.approx(300, rel=0.06)
    assert sum(-(-length // 16) for length in sample) / 3000 == pytest.approx(lengths.mean_blocks(16), rel=0.06)


@given(st.integers(1, 10_000_000), st.floats(0, 1))
def test_blocks_of_lengths_of_any_size_are_within_bounds(longest: int, share: float) -> None:
    mean = 1 + share * (longest - 1)
    blocks = Lengths(mean, longest).mean_blocks(16)
    assert mean / 16 * (1 - 1e-6) <= blocks <= -(-longest // 16)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"weights": "int2"}, "weights must be one of 'float32'"),
        ({"kv_dtype": "fp8"}, "kv_dtype must be one of 'auto'"),
        ({"memory": 0}, "must be above 0"),
        ({"memory": MOST_GIB * GiB + 1}, "at most 1,048,576 GiB"),
        ({"set_aside": 1.0}, "from 0 to below 1"),
        ({"set_aside": -0.1}, "from 0 to below 1"),
        ({"parameters": MOST_PARAMETERS + 1}, "parameters must be a whole number"),
        ({"block_size": 0}, "block_size must be a whole number"),
    ],
)
def test_invalid_settings_are_refused(change: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        llama(**change)


@pytest.mark.parametrize(
    "change", [{"memory": 1}, {"memory": MOST_GIB * GiB}, {"block_size": 1}, {"block_size": 1024}, {"parameters": 1}]
)
def test_settings_at_the_border_are_accepted(change: dict) -> None:
    for policy in POLICIES:
        assert llama(**change).sequences(policy) >= 0


@pytest.mark.parametrize(("mean", "longest"), [(0, 10), (11, 10), (float("nan"), 10), (1, 0), (1, 1.5), (5, 10**9)])
def test_impossible_lengths_are_refused(mean: float, longest: int) -> None:
    with pytest.raises(ConfigError, match=r"mean length|longest sequence"):
        Lengths(mean, longest)


def test_the_memory_of_a_gpu_agrees_with_its_name() -> None:
    for name, size in GPUS.items():
        said = [int(word) for word in name.split() if word.isdigit() and name.endswith("GB")]
        assert said in ([], [size])


def test_a_device_is_named_or_has_as_many_bytes_as_are_given() -> None:
    assert [device_bytes(key) for key in GPU_KEYS] == [size * GiB for size in GPUS.values()]
    for gpu in ("t4", "no-such-gpu"):
        assert device_bytes(gpu, 24) == 24 * GiB
        assert device_bytes(gpu, 0.5) == GiB // 2
        assert device_bytes(gpu, 1e-12) == 1  # never none
        assert device_bytes(gpu, MOST_GIB) == MOST_GIB * GiB


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"one of t4, l4, .* not 'no-such-gpu'"):
        device_bytes("no-such-gpu")


@pytest.mark.parametrize("memory", [0, -1, MOST_GIB + 1, float("nan"), float("inf"), True, "24"])
def test_an_impossible_size_of_a_device_is_refused(memory: object) -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 1,048,576"):
        device_bytes("t4", memory)
