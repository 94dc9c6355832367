"""A folder whose model lacks weights, has others, or is none that can be decoded, is refused with the reason."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from lab import EngineConfig, LabError, ModelLoadError, SamplingParams, load_engine
from lab.memory.model_memory import find_model
from lab.models import loader as loading
from lab.models import meta_model as skeleton
from tests import tiny_models
from tests.refused import WEIGHTS, words

Weights = dict[str, torch.Tensor]
GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4}}


def change(where: Path, how: Callable[[Weights], Weights]) -> None:
    save_file(how(load_file(where / WEIGHTS)), where / WEIGHTS, metadata={"format": "pt"})


def test_a_run_names_a_folder_but_not_where_it_lies(folder) -> None:
    """The run's file may be passed on: a path would tell who made it."""
    where = folder()
    engine = load_engine(where, where, device="cpu")
    run = engine.generate("a b", EngineConfig(speculative="draft"), SamplingParams(max_tokens=2))
    assert (run.started.target, run.started.draft) == ("model", "model")
    assert str(where.parent) not in run.to_json()


def test_weights_that_are_missing_are_never_made_up(folder) -> None:
    where = folder()
    change(where, lambda weights: {name: weight for name, weight in weights.items() if ".layers.1." not in name})
    said = words(where)
    assert "model.layers.1.input_layernorm.weight' is missing" in said
    assert "and 6 more" in said
    assert "LlamaForCausalLM" in said


@pytest.mark.parametrize(
    ("architecture", "settings", "said"),
    [
        ("llama", {"num_hidden_layers": 9}, "'model.layers.3.input_layernorm.weight' is missing"),
        ("llama", {"model_type": "qwen3", "head_dim": 12}, "'model.layers.0.self_attn.k_norm.weight' is missing"),
        ("llama", {"model_type": "qwen2"}, "'model.layers.0.self_attn.k_proj.bias' is missing"),
        ("llama", {"model_type": "bert", "is_decoder": True}, r"'bert\.\S+' is missing"),
        ("llama", {"vocab_size": 300}, r"'lm_head.weight' has the shape \[257, 48\] and not \[300, 48\]"),
        ("llama", {"intermediate_size": 64}, r"down_proj.weight' has the shape \[48, 96\] and not \[48, 64\]"),
        ("llama", {"num_hidden_layers": 2}, "'model.layers.2.input_layernorm.weight' does not belong there"),
        ("qwen3", {"model_type": "llama"}, "'model.layers.0.self_attn.k_norm.weight' does not belong there"),
        ("qwen2", {"model_type": "llama"}, "'model.layers.0.self_attn.k_proj.bias' does not belong there"),
    ],
)
def test_weights_of_another_model_are_refused(folder, architecture: str, settings: dict, said: str) -> None:
    where = folder(architecture, **settings)
    with pytest.raises(ModelLoadError, match=said):
        load_engine(where, device="cpu")


def renamed(weights: Weights) -> Weights:
    return {name.removeprefix("transformer."): weight for name, weight in weights.items()}


@pytest.mark.parametrize(
    ("architecture", "how"),
    [
        ("llama", lambda weights: weights),
        ("llama", lambda weights: weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6)}),
        ("llama", lambda weights: weights | {"vision_tower.layers.0.mlp.weight": torch.ones(2, 2)}),
        ("llama", lambda weights: weights | {"medusa_head.0.0.linear.weight": torch.ones(2, 2)}),
        ("llama", lambda weights: weights | {"v_head.summary.weight": torch.ones(1, 48)}),
        ("gpt2", renamed),
        ("gpt2", lambda weights: renamed(weights) | {"h.0.attn.bias": torch.ones(1, 1, 4, 4)}),
        ("gpt2", lambda weights: weights | {"transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}),
    ],
    ids=["plain", "rotary", "vision", "medusa", "value", "base", "mask", "masked"],
)
def test_weights_that_a_model_does_not_need_are_ignored(folder, architecture: str, how: Callable) -> None:
    """Such as buffers saved by older versions, other heads, the rest of a larger model."""
    where = folder(architecture)
    before = load_engine(where, device="cpu").generate("Once", None, SamplingParams(max_tokens=8)).token_ids
    change(where, how)
    assert load_engine(where, device="cpu").generate("Once", None, SamplingParams(max_tokens=8)).token_ids == before


def test_tied_weights_that_are_saved_once_are_loaded(tmp_path: Path) -> None:
    tiny_models.random_model("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    tiny_models.tokenizer().save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / WEIGHTS)
    load_engine(tmp_path, device="cpu")


@pytest.mark.parametrize(
    "settings",
    [
        {"hidden_size": "a"},
        {"hidden_size": -1},
        {"hidden_size": 0},
        {"hidden_size": 50},
        {"num_attention_heads": 0},
        {"num_attention_heads": None},
        {"num_key_value_heads": 0},
        {"num_hidden_layers": 10**9},
        {"head_dim": "wide"},
        {"eos_token_id": [5, "a"]},
        {"rms_norm_eps": "x"},
        {"hidden_act": "nosuch"},
        {"layer_types": 5},
        {"layer_types": [1, 2, 3]},
        {"sliding_window": "x", "use_sliding_window": True},
        {"rope_scaling": {"type": "nosuch", "factor": 2}},
        {"rope_parameters": []},
        {"quantization_config": []},
        {"quantization_config": {"quant_method": "nosuch"}},
        {"text_config": 5},
        {"model_type": 5},
        {"is_encoder_decoder": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("look", [lambda where: load_engine(where, device="cpu"), find_model], ids=["load", "find"])
def test_impossible_settings_are_refused_or_ignored(folder, settings: dict, look: Callable) -> None:
    where = folder(**settings)
    with suppress(LabError):
        look(where)


LOOKS = pytest.mark.parametrize(
    "look", [lambda where: load_engine(where, device="cpu"), find_model], ids=["load", "find"]
)
"""Both read the configuration, and report the same about it."""


@LOOKS
@pytest.mark.parametrize(
    "settings", [{"hidden_size": "48"}, {"hidden_size": 48.0}, {"num_attention_heads": 0}], ids=str
)
def test_a_number_of_the_wrong_type_is_refused_like_an_impossible_one(folder, settings: dict, look: Callable) -> None:
    (name, size), *_ = settings.items()
    with pytest.raises(LabError, match=f"gives '{size}' as {name}; a decoder .* has a whole number from 1 to"):
        look(folder(**settings))


@LOOKS
@pytest.mark.parametrize(
    "place", [lambda where: where.unlink(), lambda where: (where.unlink(), where.symlink_to(where))]
)
def test_a_folder_without_a_config_json_is_refused(folder, place: Callable, look: Callable) -> None:
    where = folder()
    place(where / "config.json")
    with pytest.raises(ModelLoadError, match=rf"There is no config\.json in {where}\. A model's folder holds config"):
        look(where)


@LOOKS
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}},
            "brings code of its own for its architecture, which is never run here",
        ),
        (
            {"model_type": "nosuch"},
            r"the model type 'nosuch', which this version of transformers \([\d.]+\) does not know",
        ),
        ({"model_type": None}, "gives no model_type, which names the architecture"),
        ({"hidden_act": "nosuch"}, r"no causal language model of this llama configuration\. \(KeyError: 'nosuch'\)"),
    ],
    ids=["own code", "unknown", "none", "activation"],
)
def test_an_architecture_unknown_to_transformers_is_named(folder, settings: dict, said: str, look: Callable) -> None:
    where = folder(**settings)
    with pytest.raises(LabError, match=said) as refused:
        look(where)
    assert "executed" not in str(refused.value)


def test_own_code_for_an_architecture_known_to_transformers_is_ignored(folder) -> None:
    load_engine(folder(auto_map={"AutoConfig": "own.Config"}), device="cpu")


@pytest.mark.parametrize("architecture", tiny_models.CONFIGS)
def test_a_folder_without_a_tokenizer_is_refused(folder, architecture: str) -> None:
    """For some architectures transformers makes up a tokenizer with a single token."""
    where = folder(architecture)
    (where / "tokenizer.json").unlink()
    assert "neither tokenizer.json nor tokenizer.model is there" in words(where)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"quant_method": "nvfp4"}, r"quantised \(nvfp4\), which cannot be used here\. .*not supported"),
        ({"quant_method": "gptq", "bits": 4}, r"quantised \(gptq\), and a library .* is not installed\. .*optimum"),
    ],
)
def test_unsupported_quantised_weights_are_not_called_damaged(folder, monkeypatch, method: dict, said: str) -> None:
    monkeypatch.setattr("transformers.quantizers.quantizer_gptq.is_optimum_available", lambda: False)
    where = folder(quantization_config=method)
    with pytest.raises(ModelLoadError, match=said) as refused:
        load_engine(where, device="cpu")
    assert "damaged" not in str(refused.value)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache/blobs/model.safetensors"),
        OSError("There was a specific connection error when trying to load a/b:\n500 for url '/a/b/model.safetensors'"),
    ],
    ids=["full disk", "broken line"],
)
def test_a_failed_download_is_not_reported_as_missing_safetensors(folder, monkeypatch, error: OSError) -> None:
    def raising(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", raising)
    said = words(folder())
    assert "has no weights as safetensors" not in said
    assert any(reason in said for reason in ("No space left on device", "connection error"))


@pytest.fixture
def unloaded(monkeypatch) -> None:
    """Loading the weights, which would take memory, fails."""
    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", None)


def test_a_tokenizer_without_tokenizer_json_is_refused(folder, monkeypatch) -> None:
    """One that transformers writes in Python, which cannot stream its text."""
    slow = Mock(is_fast=False)
    monkeypatch.setattr(loading.AutoTokenizer, "from_pretrained", Mock(return_value=slow))
    assert "has no fast tokenizer (tokenizer.json)" in words(folder())


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_no_damaged_tokenizer(folder, monkeypatch, end: type[BaseException]) -> None:
    monkeypatch.setattr(loading.AutoTokenizer, "from_pretrained", Mock(side_effect=end))
    with pytest.raises(end):
        loading.load_tokenizer(folder(), name="a model")


@pytest.mark.parametrize("settings", [{}, GPTQ], ids=["plain", "quantised"])
def test_a_model_far_larger_than_its_files_is_refused_before_it_takes_memory(folder, unloaded, settings: dict) -> None:
    """transformers would initialise the missing weights: 1.2 GB here."""
    said = words(folder(intermediate_size=2_000_000, **settings))
    assert "describes a model of 864,045,744 parameters, and its weights are 351,928 bytes, too few" in said


@pytest.mark.parametrize(("settings", "refused"), [({}, True), (GPTQ, False)], ids=["plain", "quantised"])
def test_only_quantised_weights_may_have_less_than_a_byte_each(folder, unloaded, settings: dict, refused: bool) -> None:
    said = words(folder(intermediate_size=2_000, **settings))
    assert ("too few for that" in said) == refused


@pytest.mark.parametrize(("settings", "refused"), [({}, True), (GPTQ, False)], ids=["plain", "quantised"])
def test_the_size_of_quantised_weights_in_memory_is_not_guessed(
    folder, unloaded, monkeypatch, settings: dict, refused: bool
) -> None:
    monkeypatch.setattr(skeleton, "free_bytes", lambda device: 0)
    assert ("GB are free" in words(folder(**settings))) == refused


def test_only_weights_in_float32_are_copied_into_bfloat16() -> None:
    assert skeleton.weight_bytes(100, torch.float32, packed=60) == 520
    assert skeleton.weight_bytes(100, torch.bfloat16, packed=60) == 200


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(folder, unloaded, monkeypatch) -> None:
    monkeypatch.setattr(skeleton, "free_bytes", lambda device: 100_000)
    said = words(folder())
    assert "its weights take 0.0 GB of memory on cpu in float32, and 0.0 GB are free there" in said


@pytest.mark.parametrize(
    ("stored", "how", "said"),
    [
        ("bfloat16", {}, "on cpu in float32 with the copy in bfloat16 for the step in C, and 0.0 GB are free"),
        ("bfloat16", {"kernels": "reference"}, ""),
        ("bfloat16", {"dtype": "bfloat16"}, ""),
        ("float16", {}, ""),  # which bfloat16 cannot hold: no step in C
    ],
)
def test_the_copy_for_the_step_in_c_has_to_fit_too(folder, unloaded, monkeypatch, stored, how, said) -> None:
    """With five bytes a parameter: the copy needs two beside the four of float32."""
    where = folder(head_dim=16, dtype=stored)
    monkeypatch.setattr(skeleton, "free_bytes", lambda device: 5 * find_model(where).parameters)
    with pytest.raises(ModelLoadError) as refused:
        load_engine(where, device="cpu", **how)
    assert said in str(refused.value)
    assert ("GB are free" in str(refused.value)) == bool(said)


def test_transformers_report_of_weights_that_do_not_fit_is_not_logged(folder, caplog) -> None:
    log = logging.getLogger("transformers")
    log.addHandler(caplog.handler)
    try:
        assert "has the shape" in words(folder(vocab_size=300))
    finally:
        log.removeHandler(caplog.handler)
    assert not caplog.records
    assert not logging.getLogger("transformers.modeling_utils").filters, "other reports are silenced for good"


def test_a_mistyped_embedded_draft_is_not_looked_up_on_the_hub() -> None:
    with pytest.raises(ModelLoadError, match="no draft 'mached' for the embedded target: it is matched or mismatched"):
        load_engine(draft="mached")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"draft": "mached"}, "no draft 'mached'"),
        ({"draft": ""}, "no draft ''"),
        ({"target": loading.WEIGHTS / "target", "draft": "no/such/folder"}, "no folder 'no/such/folder'"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 2}, "max_num_batched_tokens=2 is too few"),
        ({"kv_bytes": 0.5}, "kv_bytes"),
        ({"kernels": "tritn"}, "kernels must be one of"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_before_anything_is_loaded(monkeypatch, arguments: dict, message: str) -> None:
    loaded: list[object] = []
    monkeypatch.setattr("lab.load.load_model", lambda where, **_: loaded.append(where))
    with pytest.raises(LabError, match=message):
        load_engine(**arguments, device="cpu")
    assert not loaded
