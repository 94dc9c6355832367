"""Storage formats: what is read back, and how many bytes it takes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.errors import ConfigError
from lab.kv_cache.float8 import Float8HeadLayer, Float8Layer
from lab.kv_cache.formats import Int4Layer, Int8Layer, pack, unpack
from lab.kv_cache.kv_cache_groups import kv_cache_groups
from lab.kv_cache.rotated import RotatedInt4Layer, rotation
from lab.kv_cache.storage import FORMATS, KVStorage, bytes_per_token
from lab.kv_cache.turboquant import LEVELS, TurboQuantLayer

SHAPE = {"layers": 2, "kv_heads": 3, "head_dim": 16}
QUANTISED = [Int8Layer, Int4Layer]
EVERY = [*QUANTISED, Float8Layer, Float8HeadLayer, RotatedInt4Layer, TurboQuantLayer]


ROUNDING = {"int4_per_token_head": 0.2, "turboquant_3bit_nc": 1.0}
"""Of a number, relative; in other formats less than a hundredth for a vector of equal ones."""


def storage(kv_format, dtype=torch.float32, slots=20, shape=SHAPE):
    return KVStorage(kv_format, slots, **shape, dtype=dtype, device=torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_plain_storage_reads_back_what_was_written(dtype):
    layer = storage("auto", dtype).layers[1]
    slots = torch.tensor([7, 2, 11])
    written = torch.randn(2, 3, 3, 16, dtype=dtype)
    layer.write(slots, *written)
    assert torch.equal(torch.stack(layer.read(slots)), written)


@pytest.mark.parametrize("kv_format", ["int8", "int4"])
def test_the_scales_of_a_head_lie_side_by_side(kv_format):
    """A GPU fetches 32 bytes at a time: what is wanted together has to lie together."""
    _, scales = storage(kv_format).layers[0].tensors
    assert scales.shape[:3] == (20, 2, 3)
    assert scales.stride()[::3] == (scales.shape[-1], 1)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_slots_are_read_in_the_dtype_of_the_model_one_by_one_or_as_a_slice(kv_format):
    """A later write replaces an earlier one: rolling back erases nothing."""
    layer = storage(kv_format, torch.bfloat16).layers[0]
    layer.write(torch.arange(20), *torch.randn(2, 20, 3, 16, dtype=torch.bfloat16))
    ones = torch.ones(1, 3, 16, dtype=torch.bfloat16)
    layer.write(torch.tensor([6]), ones, -ones)
    for run, each, sign in zip(layer.read(slice(5, 12)), layer.read(torch.arange(5, 12)), (1, -1), strict=True):
        assert run.dtype == torch.bfloat16
        assert torch.equal(run, each)
        torch.testing.assert_close(run[1], sign * ones[0], rtol=ROUNDING.get(kv_format, 1e-2), atol=0)


@settings(max_examples=100)
@given(st.sampled_from(QUANTISED), st.lists(st.floats(-1e4, 1e4, width=32), min_size=4, max_size=4), st.floats(-30, 30))
@example(Int4Layer, [-8.0, 7.5, 0.0, 0.0], 0)  # a number half-way between the last step and one too many
@example(Int4Layer, [-8.0, 7.9, 0.0, 0.0], 0)  # and one beyond it
def test_a_number_is_off_by_at_most_half_a_scale(form, numbers, power):
    """The scale that counts is the stored one, after its own rounding."""
    x = torch.tensor([numbers], dtype=torch.float32) * 2.0**power
    whole, scale = form.quantise(x)
    half = scale.float().abs() / 2
    assert ((form.dequantise(whole, scale) - x).abs() <= half * (1 + 1e-5)).all()
    steps = 127 if form is Int8Layer else 7.5  # and the scale is no wider than it has to be
    assert half <= 0.5 * x.abs().max() / steps * (1 + 2**-7) + torch.finfo(torch.float32).tiny


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([2, 12, 64, 80, 128]), st.floats(-8, 8), st.sampled_from([1.0, 100.0]), st.integers(0, 999))
def test_float8_and_rotated_vectors_are_off_by_at_most_their_bounds(head_dim, power, outlier, seed):
    """e4m3: 1/16 of a number, or half of its smallest step; rotated: half a scale in each rotated number."""
    x = torch.randn(5, head_dim, generator=torch.Generator().manual_seed(seed)) * 2.0**power
    x[0], x[:, 1] = 0, x[:, 1] * outlier
    plain = Float8Layer.dequantise(*Float8Layer.quantise(x))
    within = x.clamp(-448, 448)
    assert ((plain - within).abs() <= (within.abs() / 16).clamp_min(2**-10)).all()
    numbers, scale = Float8HeadLayer.quantise(x)
    off = (Float8HeadLayer.dequantise(numbers, scale) - x).abs()
    assert (off <= torch.maximum(x.abs() / 16, scale * 2**-10) * (1 + 1e-5)).all()
    numbers, scale = RotatedInt4Layer.quantise(x)
    off = (RotatedInt4Layer.dequantise(numbers, scale) - x).norm(dim=-1)
    assert (off <= scale[:, 0].float() / 2 * head_dim**0.5 * (1 + 1e-4) + 1e-30).all()
    turn = rotation(head_dim)
    torch.testing.assert_close(turn @ turn.T, torch.eye(head_dim))


def test_a_rotation_spreads_an_outlier():
    """One number of a hundred times the others' size costs INT4 its other numbers, and the rotated format less."""
    x = torch.randn(200, 128, generator=torch.Generator().manual_seed(0))
    x[:, :4] *= 30
    off = [(form.dequantise(*form.quantise(x)) - x)[:, 4:32].square().mean() for form in (Int4Layer, RotatedInt4Layer)]
    assert off[1] < 0.5 * off[0]


def test_three_bits_from_a_codebook_lose_what_theory_says_and_keep_lengths():
    """Of a normally distributed number eight levels lose 3.45% of the variance (Max, 1960); outliers change nothing."""
    density = torch.distributions.Normal(0, 1)
    grid = torch.linspace(-8, 8, 160_001)
    weights, levels = density.log_prob(grid).exp(), torch.linspace(-2, 2, 8)
    for _ in range(300):  # Lloyd: each level is the mean of what is nearest to it
        nearest = torch.bucketize(grid, (levels[1:] + levels[:-1]) / 2)
        total = torch.zeros(8).index_add(0, nearest, weights)
        levels = torch.zeros(8).index_add(0, nearest, weights * grid) / total
    torch.testing.assert_close(levels[4:], torch.tensor(LEVELS), atol=2e-3, rtol=0)
    x = torch.randn(500, 128, generator=torch.Generator().manual_seed(0))
    for outlier in (1, 30):
        x[:, :4] *= outlier
        read = TurboQuantLayer.dequantise(*TurboQuantLayer.quantise(x))
        assert 0.025 < ((read - x).norm(dim=-1) / x.norm(dim=-1)).square().mean() < 0.040
        torch.testing.assert_close(read.norm(dim=-1), x.norm(dim=-1), rtol=0.005, atol=0)


@pytest.mark.parametrize("kv_format", [form for form in FORMATS if form != "auto"])
@pytest.mark.parametrize("exempt", [{0}, {1, 2}, {0, 3}, {0, 1, 2, 3}])
def test_exempt_layers_keep_what_was_written_beside_others_in_the_same_memory(kv_format, exempt):
    """Two groups take turns of blocks, and layers in the same place of both share their memory."""
    groups = kv_cache_groups([None, 4, None, 4], shared=False, exempt=exempt)
    made = {"dtype": torch.bfloat16, "device": torch.device("cpu"), **SHAPE, "layers": 4}
    mixed, own = KVStorage(kv_format, 20, **made, groups=groups, exempt=exempt), KVStorage(kv_format, 20, **made)
    assert mixed.group_of == [0, 1, 0, 1]
    written = torch.randn(4, 2, 10, 3, 16, dtype=torch.bfloat16)
    slots = [torch.arange(20).view(5, 2, 2)[:, group].flatten() for group in mixed.group_of]
    for storage in (mixed, own):
        for layer, its, numbers in zip(storage.layers, slots, written, strict=True):
            layer.write(its, *numbers)
    mixed.copy(slice(4, 8), slice(12, 16))
    for layer, its in enumerate(slots):
        found = torch.stack(mixed.layers[layer].read(its))
        wanted = written[layer] if layer in exempt else torch.stack(own.layers[layer].read(its))
        assert torch.equal(found[:, :6], wanted[:, :6])
        assert torch.equal(found[:, 6:8], wanted[:, 2:4])
    whole = dict.fromkeys(tensor.untyped_storage() for layer in mixed.layers for tensor in layer.tensors)
    wide = max(len(exempt & {*group.layers}) for group in groups)
    sizes = {name: size for name, size in made.items() if name != "device"} | {"layers": 2, "exempt": wide}
    assert sum({one.data_ptr(): one.nbytes() for one in whole}.values()) == 20 * bytes_per_token(kv_format, **sizes)


def test_all_256_bytes_survive_unpacking_and_packing():
    every = torch.arange(256).to(torch.uint8)
    assert torch.equal(pack(unpack(every)), every)
    assert unpack(every).max() == 15
    assert torch.equal(unpack(torch.tensor([0x21], dtype=torch.uint8)), torch.tensor([1, 2], dtype=torch.uint8))


@pytest.mark.parametrize("form", EVERY)
def test_an_all_zero_vector_stays_zero(form):
    stored = form.quantise(torch.zeros(2, 8))
    assert torch.equal(form.dequantise(*stored), torch.zeros(2, 8))
    assert all(scale.isfinite().all() for scale in stored[1:])


@pytest.mark.parametrize("form", EVERY)
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_values_do_not_become_finite(form, odd):
    """An overflow in the model must be noticed, not smoothed over."""
    x = torch.ones(1, 8)
    x[0, 3] = odd
    assert not torch.isfinite(form.dequantise(*form.quantise(x))).all()


def test_int4_refuses_an_odd_head_dimension():
    shape = SHAPE | {"head_dim": 15}
    with pytest.raises(ConfigError, match="heads have 15, an odd number"):
        storage("int4", shape=shape)
    with pytest.raises(ConfigError, match="Use 'int8' or 'auto'"):
        bytes_per_token("int4", **shape, dtype=torch.float32)


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [24, 64, 80])
def test_bytes_per_token_are_those_allocated(kv_format, dtype, head_dim):
    """Every tensor of a storage is counted, scales included."""
    shape = SHAPE | {"head_dim": head_dim}
    layers = storage(kv_format, dtype, slots=20, shape=shape).layers
    held = sum(tensor.untyped_storage().nbytes() for layer in layers for tensor in layer.tensors)
    assert held == 20 * bytes_per_token(kv_format, **shape, dtype=dtype)
