"""The memory for caches, how many blocks it holds, and a cache shared by target and draft."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lab.config import EngineConfig, SamplingParams
from lab.engine import memory_budget as module
from lab.engine.memory_budget import Budget
from lab.errors import ConfigError
from lab.kv_cache.kv_cache import KVCache
from lab.models.language_model import LanguageModel
from lab.trace.events import Prefilled
from tests import tiny_models

TARGET_BYTES, DRAFT_BYTES = 3 * 2 * 2 * 12 * 4, 2 * 2 * 12 * 4
"""Of a token: layers x heads x a key and a value x numbers x bytes."""
SMALL = EngineConfig(paged=True, block_size=4, num_blocks=3)


@pytest.fixture(scope="module")
def pair() -> list[LanguageModel]:
    """A target of three layers, and a draft of one."""
    return [LanguageModel(tiny_models.random_model("llama", num_hidden_layers=layers), "llama") for layers in (3, 1)]


def test_a_limit_is_measured_once(pair, monkeypatch):
    free = iter([4000, 8000])
    monkeypatch.setattr(module, "free_bytes", lambda device: next(free))
    budget = Budget(*pair)
    assert budget.limit == budget.limit == 1000


@pytest.mark.parametrize(("free", "for_caches"), [(10_000, 9_000), (1_000, 872), (128, 0), (100, 0)])
def test_caches_leave_a_gpu_memory_for_a_step(monkeypatch, free, for_caches):
    """In MiB: a tenth, but no less than a small step needs."""
    monkeypatch.setattr(module, "free_bytes", lambda device: free * 2**20)
    assert module._for_caches(torch.device("cuda")) == for_caches * 2**20


def test_blocks_have_room_for_the_keys_and_values_of_both_models(pair):
    budget = Budget(*pair, limit=10 * 16 * (TARGET_BYTES + DRAFT_BYTES))
    assert budget.cache_config(EngineConfig()).num_blocks == 10
    assert budget.cache_config(EngineConfig(num_blocks=10)).num_blocks == 10
    with pytest.raises(ConfigError, match="holds 10 blocks"):
        budget.cache_config(EngineConfig(num_blocks=11))


def test_an_exempt_layer_takes_the_bytes_of_its_own_dtype_and_has_to_be_there(pair):
    budget = Budget(*pair)
    int8 = {"kv_dtype": "int8", "paged": True, "num_blocks": 3}
    first = EngineConfig(**int8, kv_cache_dtype_skip_layers="0")
    assert budget.token_bytes(first) == TARGET_BYTES // 3 + 2 * (2 * 2 * (12 + 4))
    cache = KVCache(setting := budget.cache_config(first), *pair)
    held = [tensor for storage in (cache.target, cache.draft) for layer in storage.layers for tensor in layer.tensors]
    assert sum(tensor.untyped_storage().nbytes() for tensor in held) == budget.cache_bytes(setting)
    with pytest.raises(ConfigError, match="names layer 3, and the model has 3"):
        budget.cache_config(EngineConfig(**int8, kv_cache_dtype_skip_layers="3"))
    plain = EngineConfig(kv_cache_dtype_skip_layers="3")  # nothing is quantised, so nothing is exempt
    assert budget.cache_config(plain) == budget.cache_config(EngineConfig())


def test_a_pool_has_at_least_a_block_and_at_most_eight_contexts(pair):
    assert Budget(*pair, limit=0).cache_config(EngineConfig()).num_blocks == 1
    assert (
        Budget(*pair, limit=10**12).cache_config(EngineConfig(block_size=48)).num_blocks == 8 * 7
    )  # 320 tokens are 6.7


def test_a_token_takes_bytes_of_the_draft_where_it_drafts(pair):
    budget = Budget(*pair)
    assert budget.token_bytes(EngineConfig(speculative="draft")) == TARGET_BYTES + DRAFT_BYTES
    assert budget.token_bytes(EngineConfig()) == budget.token_bytes(EngineConfig(speculative="ngram")) == TARGET_BYTES
    assert budget.token_bytes(EngineConfig(kv_cache=False, speculative="draft")) == 0


# -- a cache of that size, shared by target and draft ------------------------------------------------


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
        how = {"num_blocks": 16, "enable_prefix_caching": True, "eviction": eviction, "cache_priority": priority}
        config = replace(SMALL, **how)
        run = lab.generate(prompt, config, SamplingParams(max_tokens=1))
        return next(event.cached_tokens for event in run.events if isinstance(event, Prefilled))

    cached("a" * 21, 5)
    cached("b" * 21, 0)
    cached("c" * 44, 0)
    assert cached("a" * 21, 5) == found
