"""Which models the step in C computes, and that all others run on torch."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from lab import ConfigError, SamplingParams, load_engine
from lab.backends.cpu.native_support import native_step, packed_parameters, refusal
from lab.load import new_engine
from lab.models.language_model import LanguageModel
from lab.trace.events import FellBack
from tests import tiny_models
from tests.cpu.test_native import FAMILIES, LLAMA, SHAPE, exact

ROPE = {"rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_act": "gelu"}, "activation is gelu"),
        ({"hidden_size": 72, "head_dim": 16}, "multiples of 16"),
        ({"intermediate_size": 72}, "multiples of 16"),
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


@pytest.mark.parametrize(
    ("changes", "copied"),
    [
        ({}, True),
        ({"dtype": torch.bfloat16}, True),
        ({"dtype": torch.float16}, False),
        ({"dtype": torch.float32}, False),
        ({"hidden_act": "gelu"}, False),
        ({"intermediate_size": 72}, False),
        ({"quantization_config": {"quant_method": "gptq"}}, False),
    ],
)
def test_only_models_that_c_computes_are_expected_to_be_copied(changes, copied):
    assert bool(packed_parameters(LlamaConfig(**SHAPE | changes), 100_000)) == copied
    assert not packed_parameters(tiny_models.CONFIGS["gpt2"], 100_000)


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


def test_a_model_with_other_than_plain_matrices_is_refused():
    class Adapted(nn.Linear):
        pass

    model = exact(LLAMA)
    model.model.layers[0].mlp.up_proj = Adapted(48, 80, bias=False)
    assert "plain" in refusal(LanguageModel(model, "adapted"))
