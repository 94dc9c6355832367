"""Layers with sliding windows, sinks and a softcap decode as in transformers, far past their windows."""

from __future__ import annotations

import copy
import dataclasses
import itertools

import pytest
import torch

from lab import ConfigError, EngineConfig, SamplingParams
from lab.backends.torch.torch_backend import TorchBackend
from lab.engine.pass_cost import PassCostModel, Span
from lab.kv_cache import attention
from lab.load import new_engine
from lab.models.language_model import LanguageModel
from lab.models.numerical_check import refuse_disagreement
from lab.trace.events import BlockAllocated, BlockFreed, Preempted, StepTimed
from tests import tiny_models
from tests.models.test_numerical_check import random_model

WINDOW = 9
TOKENS = {"gpt_oss": 200, "gemma2": 120}
"""Of a run; of others 40."""
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
KINDS = {
    "mistral": {},
    "ministral": {"layer_types": MIXED, "head_dim": 16},
    "starcoder2": {},
    "phi3": {},
    "qwen2": {"use_sliding_window": True, "layer_types": MIXED},
    "gemma2": {"layer_types": MIXED, "head_dim": 16, "attn_logit_softcapping": 2.0},
    "gemma3_text": {"layer_types": MIXED, "head_dim": 16},
    "cohere2": {"layer_types": MIXED},
    "olmo3": {"layer_types": MIXED},
    "exaone4": {"layer_types": MIXED},
    "gpt_oss": {"layer_types": MIXED, "head_dim": 16},
}
CONFIGS = {
    "no cache": EngineConfig(kv_cache=False),
    "paged": EngineConfig(paged=True, block_size=4, enable_prefix_caching=True),
    "draft": EngineConfig(speculative="draft", num_speculative_tokens=5),
    "paged, early exit": EngineConfig(paged=True, block_size=4, speculative="early_exit"),
    "lookup, math": EngineConfig(speculative="ngram", prefill_attention="math"),
}


def windowed(kind: str) -> LanguageModel:
    model = random_model(kind, sliding_window=WINDOW, **KINDS[kind])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.copy_(torch.linspace(-3, 6, len(parameter)))
    return LanguageModel(model, kind)


@pytest.fixture(params=KINDS)
def lab(request: pytest.FixtureRequest):
    model = windowed(request.param)
    refuse_disagreement(model)
    assert model.other_attention
    draft = LanguageModel(tiny_models.perturbed(model.model, 0.02), "draft")
    return new_engine(model, tiny_models.tokenizer(), draft, max_num_batched_tokens=33)


@pytest.mark.slow
def test_greedy_tokens_equal_those_of_generate(lab) -> None:
    """Several texts at once, one of them read in chunks; then one again, whose beginning is found in the cache."""
    tokens = TOKENS.get(lab.target.name, 40)
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    prompts = ("Once upon a time there was a cat, and the cat was old", "A")
    wanted: dict[str, list[int]] = {}
    for config in CONFIGS.values():
        for run in [it.result() for it in [lab.submit(prompt, config, sampling) for prompt in (*prompts, prompts[0])]]:
            if run.prompt not in wanted:
                wanted[run.prompt] = tiny_models.continuation(lab, run.prompt_token_ids, tokens)
            assert run.token_ids == wanted[run.prompt], config
        assert lab.occupancy().live == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
def test_blocks_are_freed_when_they_slid_out_and_prefixes_found_beyond(kind: str) -> None:
    """However long the text, a group with a window keeps three blocks; a next turn finds what it needs; preempted
    requests write what they would alone."""
    model = windowed(kind)
    lab = new_engine(model, tiny_models.tokenizer())
    config = EngineConfig(paged=True, block_size=4, enable_prefix_caching=True)
    sampling = SamplingParams(max_tokens=120, ignore_eos=True)
    run = lab.generate("Once upon a time there was a cat, and the cat was old", config, sampling)
    windows = run.started.group_windows
    assert windows == ((9,) if kind == "mistral" else (None, 9, 9))
    held: dict[int, set[int]] = {group: set() for group in range(len(windows))}
    most = dict.fromkeys(held, 0)
    for event in run.events:
        if isinstance(event, BlockAllocated):
            held[event.group].add(event.block)
        elif isinstance(event, BlockFreed):
            held[event.group].remove(event.block)
            assert not event.slid_out or windows[event.group]
        elif isinstance(event, StepTimed) and event.step > 1:
            most = {group: max(most[group], len(blocks)) for group, blocks in held.items()}
            kept = sum(map(len, held.values())) * 4 * run.started.block_bytes // 4
            assert event.kv_used_bytes <= kept == event.kv_reserved_bytes
    longest = len(run.prompt_token_ids) + 120
    for group, window in enumerate(windows):
        assert most[group] == (3 if window else -(-(longest - 1) // 4)), (group, most)

    again = [*run.prompt_token_ids, *run.token_ids, 5, 6]
    turn = lab.generate(again, config, SamplingParams(max_tokens=20, ignore_eos=True))
    assert turn.metrics.cached_prompt_tokens > 100
    assert turn.token_ids == tiny_models.continuation(lab, again, 20)

    small = dataclasses.replace(config, num_blocks=len(windows) * -(-longest // 4))  # one text fits
    prompts = [run.prompt, "A", "Once", "B"]
    runs = [it.result() for it in [lab.submit(prompt, small, sampling) for prompt in prompts]]
    preempted = any(isinstance(event, Preempted) for it in runs for event in it.events)
    assert preempted == (None in windows)  # one text's blocks hold any number of them where all layers have windows
    for it in runs:
        assert it.token_ids == tiny_models.continuation(lab, it.prompt_token_ids, 120)
    assert lab.occupancy().live == 0


def test_a_layer_that_leaves_out_its_window_sinks_or_softcap_is_refused(monkeypatch) -> None:
    """The trial's texts are longer than the windows then are."""
    whole = attention._attend
    for kind, changed in (("mistral", (None, None, None)), ("gemma2", (3, None, None)), ("gpt_oss", (3, None, None))):
        with monkeypatch.context() as patch:
            patch.setattr(attention, "_attend", lambda *given, changed=changed: whole(*given[:5], *changed))
            with pytest.raises(Exception, match="% off"):
                refuse_disagreement(windowed(kind))


def test_work_within_a_window_is_counted() -> None:
    """Against a sum over tokens and layers."""
    model = windowed("gemma3_text")
    width = model.kv_heads * model.query_groups * model.head_dim
    for start, count in itertools.product((0, 3, 9, 30), (1, 4, 20)):
        stop = start + count
        seen = sum(min(p + 1, window or stop) for p in range(start, stop) for window in (WINDOW, None, WINDOW))
        flops = PassCostModel(TorchBackend(model), None).of([Span(start, stop, 0)]).flops
        assert flops - 2 * count * model.layer_weights == 4 * width * seen


def test_kernels_for_full_attention_are_refused_and_not_taken() -> None:
    model = windowed("mistral")
    assert not new_engine(copy.copy(model), tiny_models.tokenizer()).computes_by_kernels
    with pytest.raises(ConfigError, match="sliding-window attention"):
        new_engine(model, tiny_models.tokenizer(), kernels="c")
