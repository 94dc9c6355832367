"""What fits: properties that hold for any model and device, and agreement with what the engine allocates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.config import EngineConfig
from lab.engine.memory_budget import Budget
from lab.errors import ConfigError
from lab.kv_cache.kv_cache import KVCache
from lab.kv_cache.storage import FORMATS
from lab.memory.capacity import MAX_PARAMETERS, POLICIES, Deployment, Lengths
from lab.memory.catalogue import MAX_GIB, WEIGHT_BITS, GiB, device_bytes
from lab.memory.model_memory import find_model, kept_by_layers, known_models
from lab.models.loader import WEIGHTS, load_model
from tests.engine.test_recurrent import hybrid
from tests.engine.test_windows import windowed

COARSER = ("auto", "int8", "int4")
"""Each with fewer bytes than the one before."""


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    model = draw(st.sampled_from(list(known_models().values())))
    longest = draw(st.integers(1, 200_000))
    return Deployment(
        shape=model.shape,
        parameters=model.parameters,
        weights=draw(st.sampled_from(list(WEIGHT_BITS))),
        kv_dtype=draw(st.sampled_from(list(FORMATS))),
        memory=draw(st.integers(GiB, 400 * GiB)),
        set_aside=draw(st.floats(0, 0.9)),
        lengths=Lengths(draw(st.floats(1, longest)), longest),
        block_size=draw(st.sampled_from((1, 8, 16, 128))),
    )


@given(deployments(), st.integers(0, 100 * GiB), st.floats(0, 1))
def test_more_fits_with_more_memory_shorter_sequences_or_fewer_bits(
    deployment: Deployment, more: int, shorter: float
) -> None:
    assert deployment.sequences("paged") >= deployment.sequences("contiguous") >= 0
    plain, int8, int4 = (replace(deployment, kv_dtype=kv_dtype) for kv_dtype in COARSER)
    larger, lengths = replace(deployment, memory=deployment.memory + more), deployment.lengths
    assert plain.token_bytes > int8.token_bytes > int4.token_bytes
    for policy in POLICIES:
        assert plain.sequences(policy) <= int8.sequences(policy) <= int4.sequences(policy)
        assert larger.sequences(policy) >= deployment.sequences(policy)
        split = deployment.split(policy)
        assert sum(split) == pytest.approx(deployment.memory)
        assert min(split) >= -1e-6 * deployment.memory
        assert deployment.cache_bytes > 0 or split.tokens == deployment.sequences(policy) == 0
    short = replace(deployment, lengths=Lengths(1 + shorter * (lengths.mean - 1), lengths.longest))
    assert short.sequences("paged") >= deployment.sequences("paged")
    assert short.sequences("contiguous") == deployment.sequences("contiguous")  # it reserves for the longest anyway


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
    assert llama(kv_dtype="fp8").token_bytes == 32 * 8 * 2 * 128
    assert llama(kv_dtype="fp8_per_token_head").token_bytes == 32 * 8 * 2 * (128 + 4)
    assert llama(kv_dtype="int4_per_token_head").token_bytes == 32 * 8 * 2 * (64 + 2 * 2)
    assert llama(kv_dtype="turboquant_3bit_nc").token_bytes == 32 * 8 * 2 * (48 + 2)
    assert llama(kv_dtype="int4", kv_cache_dtype_skip_layers="0 31").token_bytes == 8 * 2 * (30 * 72 + 2 * 256)
    assert llama(kv_dtype="int4", kv_cache_dtype_skip_layers="sliding_window").token_bytes == 32 * 8 * 2 * 72
    with pytest.raises(ConfigError, match="names layer 32"):
        llama(kv_cache_dtype_skip_layers="32")
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

    same = llama(lengths=Lengths(8192, 8192))
    assert same.split("paged") == same.split("contiguous")


def test_layers_of_several_sizes_and_shared_ones_worked_out_by_hand() -> None:
    """Gemma 4: 31B has 50 layers of 16 heads with 1,024 tokens at most, and 10 of 4 heads twice as wide; of E2B's 35
    layers, 12 and 3 keep keys and values, and a table has 256 numbers for each of all."""
    large, small = known_models()["gemma-4-31b"], known_models()["gemma-4-e2b"]
    gemma = llama(shape=large.shape, parameters=large.parameters)
    assert gemma.token_bytes == 2 * 2 * (50 * 16 * 256 + 10 * 4 * 512)
    assert gemma.sequence_bytes(5000) == 2 * 2 * (1024 * 50 * 16 * 256 + 5000 * 10 * 4 * 512)
    assert replace(gemma, kv_dtype="int8").token_bytes == 2 * (50 * 16 * (256 + 4) + 10 * 4 * (512 + 4))
    mixed = replace(gemma, kv_dtype="int8", kv_cache_dtype_skip_layers="0 5")  # one of each
    assert mixed.token_bytes == 2 * (16 * (49 * 260 + 512) + 4 * (9 * 516 + 1024))
    gemma = llama(shape=small.shape, parameters=small.parameters, weights="int4")
    assert gemma.token_bytes == 2 * 2 * (12 * 256 + 3 * 512)
    tables = 262_144 * (1536 + 35 * 256)
    assert gemma.weight_bytes == 2 * tables + (small.parameters - tables) // 2
    notes = " ".join(kept_by_layers(small, str))
    assert "12 of 35 layers need 512 tokens" in notes
    assert "20 of 35 layers read the keys and values of an earlier one" in notes
    assert "All 8 experts of a layer" in " ".join(kept_by_layers(known_models()["mixtral-8x7b"], str))


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
    assert Budget(target, draft).cache_bytes(setting) == 7 * 16 * sum(each.token_bytes for each in both)
    room = 40 * 16 * both[0].token_bytes + 5  # forty blocks of the target alone, and a little more
    alone = replace(both[0], memory=both[0].weight_bytes + room, set_aside=0.0)
    granted = Budget(target, None, limit=room).cache_config(EngineConfig(kv_dtype=kv_dtype)).num_blocks
    assert granted == alone.num_blocks == 40


def test_a_hybrid_takes_what_the_engine_allocates_and_a_window_keeps_its_newest_tokens(tmp_path) -> None:
    """Of a hybrid's three layers one keeps keys and values; of Gemma's three, two keep 9 tokens at most."""
    hybrid().target.model.save_pretrained(tmp_path)
    found, engine = find_model(tmp_path), hybrid()
    both = {"weights": "float32", "lengths": Lengths(100, 320), "memory": GiB}
    deployment = Deployment(shape=found.shape, parameters=found.parameters, state_bytes=found.state_bytes, **both)
    assert deployment.token_bytes == engine.token_bytes(EngineConfig())
    assert found.state_bytes == engine.target.recurrent.state_bytes > 0
    assert deployment.sequence_bytes(100) == 100 * deployment.token_bytes + found.state_bytes
    room = deployment.num_blocks * 16 * deployment.token_bytes
    assert deployment.sequences("contiguous") == room // (320 * deployment.token_bytes + found.state_bytes)

    windowed("gemma3_text").model.save_pretrained(tmp_path / "gemma")
    gemma = find_model(tmp_path / "gemma")
    deployment = Deployment(shape=gemma.shape, parameters=gemma.parameters, **both)
    assert deployment.kept(100) == pytest.approx((9 + 100 + 9) / 3)
    assert deployment.kept(5) == 5
    for skipped, exempt in (("sliding_window", {0, 2}), ("1", {1})):
        mixed = replace(deployment, kv_dtype="int8", kv_cache_dtype_skip_layers=skipped)
        heads = 2 * gemma.shape.kv_heads  # keys and values
        layers = [heads * (64 if layer in exempt else 16 + 4) for layer in range(3)]
        assert mixed.token_bytes == sum(layers)
        assert mixed.sequence_bytes(100) == pytest.approx(9 * layers[0] + 100 * layers[1] + 9 * layers[2])
    assert deployment.blocks_per_sequence("contiguous") == pytest.approx((1 + 20 + 1) / 3)
    assert sum(deployment.split("paged")) == pytest.approx(GiB)
    assert any("2 of 3 layers need 9 tokens" in note for note in kept_by_layers(gemma, str))


@given(st.integers(1, 3000), st.floats(0, 1), st.sampled_from((1, 3, 16, 128)), st.integers(1, 4000))
def test_mean_and_blocks_equal_the_sums_over_all_lengths(
    longest: int, share: float, block_size: int, window: int
) -> None:
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
    kept = n.clamp(max=window)
    assert lengths.mean_within(window) == pytest.approx(float((exactly * kept).sum()), rel=1e-6)
    blocks = float((exactly * (kept / block_size).ceil()).sum())
    assert lengths.mean_blocks(block_size, window) == pytest.approx(blocks, rel=1e-6)


NAN = float("nan")


@pytest.mark.parametrize(
    ("make", "word"),
    [
        *((lambda it=it: llama(block_size=it), "block_size") for it in (16.5, 0)),
        *((lambda it=it: llama(parameters=it), "parameters") for it in (-5, 1e9, MAX_PARAMETERS + 1)),
        (lambda: llama(weights="int2"), "weights"),
        (lambda: llama(kv_dtype="int2"), "kv_dtype"),
        *((lambda it=it: llama(memory=it), "memory") for it in (0, MAX_GIB * GiB + 1)),
        *((lambda it=it: llama(set_aside=it), "set aside") for it in (1.0, -0.1)),
        *((lambda it=it: Lengths(*it), "mean length") for it in ((0, 10), (11, 10), (NAN, 10))),
        *((lambda it=it: Lengths(*it), "longest sequence") for it in ((1, 0), (1, 1.5), (5, 10**9))),
        (lambda: device_bytes("no-such-gpu"), "no-such-gpu"),
        *((lambda it=it: device_bytes("t4", it), "memory") for it in (0, -1, MAX_GIB + 1, NAN, True, "24")),
    ],
)
def test_impossible_values_are_refused(make: Callable[[], object], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        make()
