"""Changed weights, another dtype or adapter: what a cache held was computed with others, and is dropped."""

from __future__ import annotations

import gc
import weakref

import torch

from lab import EngineConfig, SamplingParams
from lab.kv_cache.storage import KVStorage
from lab.trace.events import CacheDropped, Prefilled, RunStarted
from tests import tiny_models
from tests.engine.test_batching import CONFIGS, PROMPTS
from tests.tiny_models import of


def test_changed_weights_drop_the_cache_even_in_mid_run(monkeypatch):
    lab, other = tiny_models.engine("llama"), tiny_models.engine("llama", seed=5)
    config, sampling = CONFIGS["cached"], SamplingParams(max_tokens=12, ignore_eos=True)
    lab.generate(PROMPTS[0], config, sampling)
    under_way = lab.submit(PROMPTS[2], config, sampling)
    for _ in range(4):
        lab.step()
    cache, still_there, init = weakref.ref(next(iter(lab._cores)).cache), [], KVStorage.__init__

    def making(self, *sizes, **how):
        still_there.append(cache() is not None)
        init(self, *sizes, **how)

    monkeypatch.setattr(KVStorage, "__init__", making)
    lab.target.model.load_state_dict(other.target.model.state_dict())
    gc.disable()  # a GPU may not have room for both caches until a collection
    run = lab.generate(PROMPTS[0], config, sampling)
    gc.enable()
    assert still_there
    assert not any(still_there)
    assert of(run, Prefilled)[0].cached_tokens == 0
    assert run.token_ids == other.generate(PROMPTS[0], config, sampling).token_ids
    assert len(of(run, CacheDropped)) == 1
    changed = under_way.result()
    assert len(of(changed, CacheDropped)) == 1
    said = [*changed.prompt_token_ids, *changed.token_ids[:4]]
    assert changed.token_ids[4:] == tiny_models.continuation(other, said, 8)
    assert len(of(changed, RunStarted)) == 1
    again = lab.generate(PROMPTS[2], config, sampling)
    assert of(again, Prefilled)[0].cached_tokens == (len(again.prompt_token_ids) - 1) // 4 * 4


def test_a_run_that_finds_nothing_because_weights_changed_is_reported() -> None:
    """Only one that looks for something, and only if something was held."""
    lab, sampling = tiny_models.engine("llama"), SamplingParams(max_tokens=4)

    def change() -> None:
        with torch.no_grad():
            lab.target.model.lm_head.weight.mul_(1.0)

    def reported(config: EngineConfig) -> int:
        return len(of(lab.generate(PROMPTS[0], config, sampling), CacheDropped))

    cached = CONFIGS["cached"]
    assert reported(cached) == 0
    change()
    assert reported(CONFIGS["paged"]) == 0
    assert reported(cached) == 0  # it had been dropped before
    change()
    assert reported(cached) == 1
    assert reported(cached) == 0


def test_an_identity_changes_with_weights_dtype_and_adapters():
    model = tiny_models.engine("llama").target
    seen = [model.identity()]
    assert model.identity() == seen[0]

    def then(change) -> None:
        change()
        seen.append(model.identity())

    layer = model.model.model.layers[0].mlp
    state = {"active": ["a"], "disabled": False}

    class Adapted(type(layer)):
        """As peft's layers, which have more to say than which adapter is active."""

        active_adapters = property(lambda self: state["active"])
        disable_adapters = property(lambda self: state["disabled"])

    then(lambda: layer.up_proj.weight.requires_grad_(False).mul_(2))
    then(lambda: model.model.double())
    then(lambda: setattr(layer, "__class__", Adapted))
    then(lambda: state.update(active=["b"]))
    then(lambda: state.update(disabled=True))
    assert len(set(seen)) == len(seen)
