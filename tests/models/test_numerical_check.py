"""A model's layers have to give with the lab's attention what they give with their own; otherwise it is refused."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from lab import EngineConfig, SamplingParams, UnsupportedModelError
from lab.load import new_engine
from lab.models import numerical_check
from lab.models.language_model import LanguageModel
from lab.models.loader import load_model
from lab.models.numerical_check import refuse_disagreement
from lab.trace.events import FellBack, Proposed
from tests import tiny_models

TAKEN = [
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "phi", "phi3", "smollm3", "olmo", "olmo2"),
    *("granite", "granitemoe", "gemma", "cohere", "glm4", "starcoder2", "gpt2", "gpt_bigcode", "gpt_neox", "opt"),
    *("nemotron", "stablelm"),  # whose layers do not hand on what they are given
]
DECODER = {"is_decoder": True, "pad_token_id": 1}
"""Of encoders, which transformers makes causal so."""
REFUSED = {
    "hrm_text": "fail with",  # runs its layers more than once
    "longcat_flash": "fail with",  # has two attentions per layer
}
SIZES = {
    "vocab_size": tiny_models.VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": tiny_models.CONTEXT,
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
    "num_experts": 4,
    "moe_intermediate_size": 32,
    "sliding_window": None,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 256,
}


def random_model(kind: str, dtype: torch.dtype = torch.float32, **more: object) -> PreTrainedModel:
    """A small model with random weights, and those of the sizes that its kind has."""
    config = CONFIG_MAPPING[kind]
    known = config()
    sizes = {name: size for name, size in SIZES.items() if hasattr(known, name) or name in config.attribute_map}
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config(**sizes | more), dtype=dtype).eval()


@pytest.mark.slow
@pytest.mark.parametrize("kind", TAKEN)
def test_accepted_models_decode_as_in_transformers(kind):
    model = LanguageModel(random_model(kind), kind)
    refuse_disagreement(model)
    engine = new_engine(model, tiny_models.tokenizer())
    config, sampling = EngineConfig(speculative="early_exit"), SamplingParams(max_tokens=8, temperature=0)
    requests = [engine.submit(prompt, config, sampling) for prompt in ("Once upon", "The miller's cat was old")]
    for run in [request.result() for request in requests]:
        assert run.token_ids == tiny_models.continuation(engine, run.prompt_token_ids, len(run.token_ids))
        assert not tiny_models.of(run, FellBack), "its first layers draft"


def test_positions_are_counted_as_the_model_counts_them() -> None:
    """RoBERTa from its padding token's number on, where transformers' ``generate`` begins with 0."""
    model = LanguageModel(random_model("roberta", **DECODER), "roberta")
    refuse_disagreement(model)
    assert (model.first_position, model.context_length) == (2, tiny_models.CONTEXT - 2)
    model.first_position = 0
    with pytest.raises(UnsupportedModelError, match="% off"):
        refuse_disagreement(model)


def test_a_mixture_whose_first_layers_are_dense_drafts_with_them() -> None:
    engine = new_engine(LanguageModel(random_model("qwen3_moe", mlp_only_layers=[0]), "m"), tiny_models.tokenizer())
    config = EngineConfig(speculative="early_exit", early_exit_layer=1)
    run = engine.generate("Once upon", config, SamplingParams(max_tokens=8))
    assert tiny_models.of(run, Proposed)
    assert not tiny_models.of(run, FellBack)


def test_neither_rounding_nor_small_and_untrained_models_disagree():
    """The heads of some are zero until they are trained; and what float32 calls tiny is zero in float16."""
    for kind, dtype in (("llama", torch.bfloat16), ("qwen3_moe", torch.float16), ("gpt2", torch.bfloat16)):
        refuse_disagreement(LanguageModel(random_model(kind, dtype), kind))
    refuse_disagreement(LanguageModel(random_model("llama", num_hidden_layers=1, vocab_size=12), "llama"))
    model = random_model("llama", torch.float16)
    torch.nn.init.zeros_(model.lm_head.weight)
    refuse_disagreement(LanguageModel(model, "llama"))


@pytest.mark.parametrize(("kind", "reason"), REFUSED.items())
def test_a_model_whose_layers_need_another_attention_is_refused(kind, reason):
    model = random_model(kind, torch.bfloat16)
    with pytest.raises(UnsupportedModelError, match=rf"a/model cannot be decoded here.*{reason}"):
        refuse_disagreement(LanguageModel(model, "a/model"))


def test_a_model_from_a_folder_is_checked_before_it_is_accepted(tmp_path):
    random_model("hrm_text").save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="HrmTextForCausalLM"):
        load_model(tmp_path, name="m", place="cpu", dtype=torch.float32)


@pytest.mark.parametrize(
    ("tokens", "factor", "dtype", "taken"),
    [
        (3, 2.0, torch.float32, True),
        (7, 2.0, torch.float32, False),
        (1, torch.nan, torch.float32, False),
        (10, 1.01, torch.float32, False),
        (10, 1.01, torch.bfloat16, True),
        (10, 1.1, torch.float16, False),
    ],
)
def test_a_model_is_refused_if_most_tokens_differ_or_one_is_not_finite(monkeypatch, tokens, factor, dtype, taken):
    """A few of the ten may: in a mixture, a token near a tie goes to another expert. All may by what is rounded."""
    cached = numerical_check._cached

    def changed(model, texts):
        assert model.layers == 2, "all of them may take long"
        logits = cached(model, texts)
        assert not logits.requires_grad
        logits.flatten(0, 1)[:tokens] *= factor
        return logits

    monkeypatch.setattr(numerical_check, "_cached", changed)
    with nullcontext() if taken else pytest.raises(UnsupportedModelError, match="% off"):
        refuse_disagreement(LanguageModel(random_model("llama", dtype), "llama"))


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no more"), torch.AcceleratorError("CUDA error: out of memory")]
)
def test_a_model_is_not_refused_because_memory_ran_out(monkeypatch, error):
    def short(*_):
        raise error

    monkeypatch.setattr(numerical_check, "_cached", short)
    with pytest.raises(type(error), match=str(error)):
        refuse_disagreement(LanguageModel(random_model("llama"), "llama"))


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 64,
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("phi3", {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 64}),
        # One for each kind of layer that there may be.
        ("mellum", {"rope_parameters": {"full_attention": LONG_ROPE, "sliding_attention": LONG_ROPE}, "head_dim": 16}),
    ],
)
def test_a_long_text_does_not_rotate_others_with_longrope(kind, more):
    """The angles would change for all texts of a step as soon as one of them was longer than 64 tokens."""
    engine = new_engine(LanguageModel(random_model(kind, **more), kind), tiny_models.tokenizer())
    assert engine.context_length == 64
    sampling = SamplingParams(max_tokens=20, temperature=0)
    requests = [engine.submit(prompt, sampling=sampling) for prompt in ("Once", "A long beginning " * 3)]
    short, long = [request.result() for request in requests]
    assert len(long.prompt_token_ids) + len(long.token_ids) <= 64
    assert short.token_ids == tiny_models.continuation(engine, short.prompt_token_ids, len(short.token_ids))
