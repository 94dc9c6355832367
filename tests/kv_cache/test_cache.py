"""A cache shared by target and draft."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lab.config import EngineConfig, SamplingParams
from lab.engine.memory_budget import Budget
from lab.kv_cache.kv_cache import KVCache
from lab.models.language_model import LanguageModel
from lab.trace.events import Prefilled
from tests import tiny_models

SMALL = EngineConfig(paged=True, block_size=4, num_blocks=3)


@pytest.fixture(scope="module")
def pair() -> list[LanguageModel]:
    """A target of three layers, and a draft of one."""
    return [LanguageModel(tiny_models.random_model("llama", num_hidden_layers=layers), "llama") for layers in (3, 1)]


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_a_block_is_copied_whole_and_for_both_models(pair, kv_dtype):
    made = KVCache(Budget(*pair).cache_config(replace(SMALL, kv_dtype=kv_dtype)), *pair)
    held = [tensor for storage in (made.target, made.draft) for layer in storage.layers for tensor in layer.tensors]
    for tensor in held:
        tensor.copy_(torch.arange(12).view(12, *[1] * (tensor.dim() - 1)).expand_as(tensor))
    made.copy_block(2, 0)
    for tensor in held:
        assert [int(slot.unique()) for slot in tensor] == [8, 9, 10, 11, *range(4, 12)]


@pytest.mark.parametrize(("eviction", "found"), [("lru", 0), ("priority", 20)])
def test_blocks_are_evicted_as_the_request_asks(eviction, found):
    """The older prefix has the higher priority; a third prompt needs the room of one of them."""
    lab = tiny_models.engine()

    def cached(prompt: str, priority: int) -> int:
        config = EngineConfig(
            paged=True,
            block_size=4,
            num_blocks=16,
            enable_prefix_caching=True,
            eviction=eviction,
            cache_priority=priority,
        )
        run = lab.generate(prompt, config, SamplingParams(max_tokens=1))
        return next(event.cached_tokens for event in run.events if isinstance(event, Prefilled))

    cached("a" * 21, 5)
    cached("b" * 21, 0)
    cached("c" * 44, 0)
    assert cached("a" * 21, 5) == found
