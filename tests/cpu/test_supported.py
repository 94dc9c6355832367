"""Which models the step in C computes, and how it packs their weights: in which order, in which memory, and anew when
they change. All others run on torch."""

from __future__ import annotations

import copy
import gc
import mmap
import re
import weakref
from typing import ClassVar

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from lab import ConfigError, SamplingParams, load_engine
from lab.backends.cpu.native_model import NativeModel, native_step, packed_parameters, refusal
from lab.backends.interface import NewTokens
from lab.load import new_engine
from lab.models.language_model import LanguageModel
from lab.trace.events import FellBack
from tests import tiny_models
from tests.cpu.test_native import FAMILIES, LLAMA, SHAPE, engines, exact, llama, native_llama

ROPE = {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_act": "gelu"}, "activation is gelu"),
        ({"hidden_size": 72, "head_dim": 16}, "multiples of 16"),
        ({"head_dim": 24}, "multiples of 16"),
        ({"rope_parameters": ROPE | {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial"),
        ({"rope_parameters": ROPE | {"rope_type": "dynamic"}}, r"changes with the length \(dynamic\)"),
        (
            {"rope_parameters": ROPE | {"rope_type": "longrope", "short_factor": [1] * 16, "long_factor": [2] * 16}},
            r"changes with the length \(longrope\)",
        ),
    ],
)
def test_a_configuration_that_the_step_in_c_does_not_support_is_refused(changes, says):
    config = LlamaConfig(**SHAPE | changes)
    assert re.search(says, refusal(LanguageModel(exact(config), "odd")))
    config.dtype = torch.bfloat16
    assert packed_parameters(config, 1000) == 0, "no memory is kept free for a copy"


def test_models_the_step_in_c_does_not_support_run_on_torch():
    model = exact(LLAMA)
    assert "float32" in refusal(LanguageModel(copy.deepcopy(model).bfloat16(), "half"))
    assert "gpt2" in refusal(LanguageModel(tiny_models.random_model("gpt2"), "gpt2"))
    adapted = copy.deepcopy(model)
    adapted.model.layers[0].mlp.up_proj = type("Adapted", (nn.Linear,), {})(48, 80, bias=False)
    assert "plain" in refusal(LanguageModel(adapted, "adapted"))
    with torch.no_grad():
        model.lm_head.weight[3, 3] = 1 / 3
    refused = LanguageModel(model, "fine")
    assert "bfloat16" in refusal(refused)
    with pytest.raises(ConfigError, match="more digits than bfloat16"):
        new_engine(refused, tiny_models.tokenizer(), kernels="c")
    engine = new_engine(refused, tiny_models.tokenizer())
    run = engine.generate("The king", sampling=SamplingParams(max_tokens=3))
    assert len(run.token_ids) == 3
    assert not [event for event in run.events if isinstance(event, FellBack)]


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_the_copied_parameters_are_those_of_all_matrices(config):
    model = exact(config)
    matrices = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    others = sum(weight.numel() for weight in model.parameters() if weight.ndim == 1)  # few in a real model
    copied = packed_parameters(config, sum(weight.numel() for weight in model.parameters()))
    assert copied - others == sum(weight.numel() for weight in matrices)


def test_the_step_in_c_is_the_default_on_a_cpu():
    engine = load_engine(device="cpu")
    assert engine.kernels == "c"
    rounded = native_step(engine.target).model.rounded
    assert engine.dtype == ("float32, products of bfloat16" if rounded else "float32")
    assert engine.generate("Once", sampling=SamplingParams(max_tokens=1)).started.dtype == engine.dtype
    exactly = load_engine(device="cpu", dtype="float32")
    assert exactly.dtype == "float32"
    assert not native_step(exactly.target).model.rounded
    with pytest.raises(ConfigError, match="kernels must be one of 'auto', 'triton', 'c', 'reference'"):
        load_engine(device="cpu", kernels="fast")


# -- packing ---------------------------------------------------------------------------------------


def test_changed_weights_are_packed_again():
    reference, native = engines()
    sampling = SamplingParams(max_tokens=6, ignore_eos=True)
    before = native.generate("The king", sampling=sampling).token_ids
    for engine in (reference, native):
        with torch.no_grad():
            weight = engine.target.model.model.layers[1].mlp.down_proj.weight
            weight.copy_((-weight).bfloat16().float())
    after = native.generate("The king", sampling=sampling)
    assert after.token_ids == reference.generate("The king", sampling=sampling).token_ids != before


class Memory(mmap.mmap):
    """A mapping that is tracked for as long as it exists."""

    there: ClassVar[weakref.WeakSet[Memory]] = weakref.WeakSet()

    def __new__(cls, *arguments, **named):
        made = super().__new__(cls, *arguments, **named)
        cls.there.add(made)
        return made


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="pages are of one size here")
def test_the_memory_of_packed_weights_is_freed(monkeypatch):
    """When a model is deleted, and when changed weights are packed in their place."""
    monkeypatch.setattr("lab.backends.cpu.structs.mmap.mmap", Memory)
    model = LanguageModel(exact(LLAMA), "llama")
    native_step(model).prepare(model)
    (first,) = Memory.there
    matrices = [module.weight for module in model.model.modules() if isinstance(module, nn.Linear)]
    assert len(first) >= 2 * sum(weight.numel() for weight in matrices)
    del first
    with torch.no_grad():
        matrices[0].neg_()
    native_step(model).prepare(model)
    assert len(Memory.there) == 1
    del model
    gc.collect()
    assert not Memory.there


@pytest.mark.parametrize("system", ["has no large pages", "grants none", "grants no memory of its own"])
@torch.inference_mode()
def test_without_large_pages_weights_are_packed_into_ordinary_ones(monkeypatch, system):
    def refuse(*_, **__):
        raise OSError

    if system == "has no large pages":
        monkeypatch.delattr("lab.backends.cpu.structs.mmap.MADV_HUGEPAGE", raising=False)
        monkeypatch.delattr("lab.backends.cpu.structs.mmap.MAP_ANONYMOUS", raising=False)
    elif system == "grants none":
        monkeypatch.setattr(Memory, "madvise", refuse)
        monkeypatch.setattr("lab.backends.cpu.structs.mmap.mmap", Memory)
    else:
        monkeypatch.setattr("lab.backends.cpu.structs.mmap.mmap", refuse)
    batch = [NewTokens(torch.arange(9), 0, None, 9)]
    expected = native_llama().step(batch, llama().layers, None)
    assert torch.equal(NativeModel(llama()).step(batch, llama().layers, None), expected)
