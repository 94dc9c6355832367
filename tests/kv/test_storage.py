"""Formats: what is read back, and how many bytes it takes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.kv.storage import FORMATS, KVStorage, bytes_per_token, quantise_int8

SHAPE = {"layers": 2, "kv_heads": 3, "head_dim": 16}


def storage(kv_format, dtype=torch.float32, slots=20):
    return KVStorage(kv_format, slots, **SHAPE, dtype=dtype, device=torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_native_reads_back_what_was_written(dtype):
    layer = storage("auto", dtype).layers[1]
    slots = torch.tensor([7, 2, 11])
    key, value = torch.randn(2, 3, 3, 16, dtype=dtype)
    layer.write(slots, key, value)
    read_key, read_value = layer.read(slots)
    assert torch.equal(read_key, key)
    assert torch.equal(read_value, value)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_run_of_slots_reads_like_the_slots_one_by_one(kv_format):
    layer = storage(kv_format).layers[0]
    layer.write(torch.arange(20), torch.randn(20, 3, 16), torch.randn(20, 3, 16))
    for run, each in zip(layer.read(slice(5, 12)), layer.read(torch.arange(5, 12)), strict=True):
        assert torch.equal(run, each)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_the_newest_write_to_a_slot_wins(kv_format):
    """Rolling back erases nothing: the next write has to cover what a rejected token left."""
    layer = storage(kv_format).layers[0]
    layer.write(torch.tensor([4]), 100 * torch.ones(1, 3, 16), -100 * torch.ones(1, 3, 16))
    layer.write(torch.tensor([4]), torch.ones(1, 3, 16), -torch.ones(1, 3, 16))
    key, value = layer.read(torch.tensor([4]))
    assert torch.allclose(key, torch.ones(1, 3, 16))
    assert torch.allclose(value, -torch.ones(1, 3, 16))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=4, max_size=4), st.floats(-30, 30))
def test_int8_is_off_by_at_most_half_a_scale(numbers, power):
    x = torch.tensor([numbers], dtype=torch.float32) * 2.0**power
    whole, scale = quantise_int8(x)
    assert whole.dtype == torch.int8
    assert ((whole * scale - x).abs() <= scale * 0.5 * (1 + 1e-5)).all()


def test_int8_keeps_an_all_zero_vector():
    whole, scale = quantise_int8(torch.zeros(2, 8))
    assert torch.equal(whole * scale, torch.zeros(2, 8))
    assert torch.isfinite(scale).all()


def test_one_heads_outlier_costs_no_other_head():
    x = torch.ones(1, 2, 8)
    x[0, 0, 0] = 1e6
    whole, scale = quantise_int8(x)
    assert torch.allclose((whole * scale)[0, 1], torch.ones(8))


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_those_that_are_held(kv_format, dtype):
    """Every tensor a storage holds, scales included, is counted."""
    held = sum(
        tensor.numel() * tensor.itemsize
        for layer in storage(kv_format, dtype, slots=20).layers
        for tensor in vars(layer).values()
        if isinstance(tensor, torch.Tensor)
    )
    assert held == 20 * bytes_per_token(kv_format, **SHAPE, dtype=dtype)
