"""Layers through torch.compile. Generating machine code is slow, so only finding the graphs is tested on a CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partialmethod

import pytest
import torch

from lab import EngineConfig, SamplingParams
from lab.errors import UnsupportedModelError
from lab.kv_cache.attention_metadata import Group, StepPlan
from lab.models.language_model import LanguageModel
from lab.trace.events import FellBack
from tests import tiny_models

SAMPLING = SamplingParams(max_tokens=8, ignore_eos=True)
CONFIGS = [
    EngineConfig(kv_dtype="int8"),
    EngineConfig(paged=True, speculative="draft", num_speculative_tokens=3),
    EngineConfig(speculative="early_exit"),
    EngineConfig(kv_cache=False),
]


def run(engine, first: int = len(CONFIGS), **changes: bool) -> list[list[int]]:
    """The tokens by the ``first`` configurations."""
    configs = [replace(config, **changes) for config in CONFIGS[:first]]
    return [engine.generate("The king had", config, SAMPLING).token_ids for config in configs]


@pytest.mark.slow
def test_compiled_layers_give_the_same_tokens_and_are_compiled_once(monkeypatch):
    """One token and several, all layers of target and draft: a few graphs, and no more for any later step."""
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list) -> object:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(LanguageModel, "compile", partialmethod(LanguageModel.compile, backend=count))
    torch.compiler.reset()
    shape = {"num_hidden_layers": 3}  # with three layers a graph for each would be too many
    expected = run(tiny_models.engine("llama", "good", shape=shape, kernels="reference"))
    engine = tiny_models.engine("llama", "good", shape=shape, kernels="reference")
    target, draft = engine.models(EngineConfig(torch_compile=True))
    assert target.compiled
    assert draft.compiled
    found = len(graphs)
    assert 0 < found < 4 * engine.target.layers
    assert run(engine, torch_compile=True) == expected
    with torch.inference_mode():
        rows = torch.arange(3, dtype=torch.int32)  # the dtype in steps on kernels
        group = Group(slice(0, 3), 1, (rows <= rows[:, None]).repeat(target.query_groups, 1)[None, None])
        target.forward(rows.long(), rows, StepPlan((group,), None, None), rows.long())
    assert len(graphs) == found
    compiled = replace(CONFIGS[0], torch_compile=True)
    events = engine.generate("The king had", compiled, SAMPLING).events
    assert events[0].compiled
    assert not any(isinstance(event, FellBack) for event in events)
    assert not engine.target.compiled  # the same weights, for requests that do not ask for it
    assert run(engine, 1) == expected[:1]
    assert not engine.generate("The king had", CONFIGS[0], SAMPLING).started.compiled
    engine.target.model.get_output_embeddings().weight.data.neg_()
    assert run(engine, 1, torch_compile=True) == run(engine, 1) != expected[:1]  # the weights are shared


@pytest.mark.slow
def test_if_the_compiler_fails_layers_run_uncompiled(monkeypatch):
    def broken(graph: torch.fx.GraphModule, inputs: list) -> object:
        raise OSError("no C compiler found\nat all")

    monkeypatch.setattr(LanguageModel, "compile", partialmethod(LanguageModel.compile, backend=broken))
    torch.compiler.reset()
    engine = tiny_models.engine("llama", "good", kernels="reference")
    result = engine.generate("The king had", replace(CONFIGS[1], torch_compile=True), SAMPLING)
    (event,) = [event for event in result.events if isinstance(event, FellBack)]
    assert event.part == "compile"
    assert "no C compiler found" in event.reason
    assert not result.started.compiled
    assert run(engine, 2, torch_compile=True) == run(tiny_models.engine("llama", "good", kernels="reference"), 2)


def test_a_model_whose_layers_are_not_found_is_not_compiled():
    engine = tiny_models.engine("gpt2", kernels="reference")
    layers = engine.target.model.transformer.h
    engine.target.model.transformer.h = torch.nn.ModuleList([torch.nn.Sequential(*layers)])
    with pytest.raises(UnsupportedModelError, match="GPT2LMHeadModel has no list of its 2 layers"):
        engine.submit("The king had", EngineConfig(torch_compile=True), SAMPLING)


def test_a_run_says_so_if_the_compiler_fails_for_the_draft_alone(monkeypatch):
    def fails_for_the_draft(model: LanguageModel) -> None:
        model.compile_failure = "no C compiler found" if model.name == "good" else None

    monkeypatch.setattr(LanguageModel, "compile", fails_for_the_draft)
    engine = tiny_models.engine("llama", "good", kernels="reference")
    result = engine.generate("The king had", replace(CONFIGS[1], torch_compile=True), SAMPLING)
    failed = [(event.part, event.reason) for event in result.events if isinstance(event, FellBack)]
    assert failed == [("compile", "no C compiler found")]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_compiled_layers_give_the_same_tokens_on_a_gpu(cuda_graphs):
    """Machine code, captured and not. Fused arithmetic rounds differently, so later tokens may differ."""
    from lab import load_engine

    engine = load_engine(device="cuda", dtype="float32")
    plain = engine.generate("Once upon a time", CONFIGS[1], SAMPLING)
    switched = replace(CONFIGS[1], torch_compile=True, cuda_graphs=cuda_graphs)
    compiled = engine.generate("Once upon a time", switched, SAMPLING)
    assert (compiled.started.compiled, compiled.started.cuda_graphs) == (True, cuda_graphs)
    assert not any(isinstance(event, FellBack) for event in compiled.events)
    assert compiled.token_ids == plain.token_ids
