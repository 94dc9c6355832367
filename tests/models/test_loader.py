"""Models that load from a folder, and models that are refused: wrong weights, sizes, architectures, arguments."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from lab import EngineConfig, LabError, SamplingParams, load_engine
from lab.memory.model_memory import find_model
from lab.models import loader, meta_model
from lab.models.checkpoint_files import explain_load_error
from tests.models.conftest import WEIGHTS, refusal

GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4}}


def change(where: Path, how: Callable[[dict], dict]) -> None:
    save_file(how(load_file(where / WEIGHTS)), where / WEIGHTS, metadata={"format": "pt"})


def loaded(where: Path) -> dict[str, torch.Tensor]:
    return loader.load_model(where, name="m", place="cpu", dtype=torch.float32).model.state_dict()


def test_a_run_names_a_folder_without_its_path(folder) -> None:
    """The run's file may be passed on: a path would identify who made it."""
    where = folder()
    engine = load_engine(where, where, device="cpu")
    run = engine.generate("a b", EngineConfig(speculative="draft"), SamplingParams(max_tokens=2))
    assert (run.started.target, run.started.draft) == ("model", "model")
    assert str(where.parent) not in run.to_json()


@pytest.mark.parametrize(
    ("architecture", "settings", "weight", "fault"),
    [
        ("llama", {"num_hidden_layers": 9}, "layers.3.input_layernorm.weight", "; and 51 more"),
        ("llama", {"model_type": "qwen3", "head_dim": 12}, "layers.0.self_attn.k_norm.weight", "is missing"),
        ("llama", {"model_type": "bert", "is_decoder": True}, "'bert.", "is missing"),
        ("llama", {"vocab_size": 300}, "'lm_head.weight'", "shape [257, 48] and not [300, 48]"),
        ("llama", {"num_hidden_layers": 2}, "layers.2.input_layernorm.weight", "does not belong there"),
        ("qwen2", {"model_type": "llama"}, "layers.0.self_attn.k_proj.bias", "does not belong there"),
    ],
)
def test_weights_of_another_model_are_refused(folder, caplog, architecture, settings, weight, fault) -> None:
    """Named in the message, and not in transformers' own report in the log."""
    log = logging.getLogger("transformers")
    log.addHandler(caplog.handler)
    try:
        message = refusal(folder(architecture, **settings))
    finally:
        log.removeHandler(caplog.handler)
    assert weight in message
    assert fault in message
    assert not caplog.records
    assert not logging.getLogger("transformers.modeling_utils").filters, "other reports are silenced for good"


def renamed(weights: dict) -> dict:
    return {name.removeprefix("transformer."): weight for name, weight in weights.items()}


UNUSED = {
    "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6),
    "vision_tower.layers.0.mlp.weight": torch.ones(2, 2),
    "medusa_head.0.0.linear.weight": torch.ones(2, 2),
    "v_head.summary.weight": torch.ones(1, 48),
}


@pytest.mark.parametrize(
    ("architecture", "how"),
    [
        ("llama", lambda weights: weights | UNUSED),
        ("gpt2", lambda weights: renamed(weights) | {"h.0.attn.bias": torch.ones(1, 1, 4, 4)}),
        ("gpt2", lambda weights: weights | {"transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}),
    ],
    ids=["other heads", "base model's names", "saved mask"],
)
def test_weights_that_a_model_does_not_need_are_ignored(folder, saved, architecture: str, how: Callable) -> None:
    """Buffers saved by older versions, other heads, the rest of a larger model."""
    where, before = folder(architecture), loaded(saved / architecture)
    change(where, how)
    after = loaded(where)
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def looks(where: Path) -> list[str]:
    """The messages of both functions that read a configuration."""
    messages = []
    for look in (lambda where: load_engine(where, device="cpu"), find_model):
        with suppress(LabError):
            try:
                look(where)
            except LabError as error:
                messages.append(str(error))
                raise
    return messages


IMPOSSIBLE = [
    *({"hidden_size": -1}, {"num_attention_heads": None}, {"num_hidden_layers": 10**9}, {"head_dim": "wide"}),
    *({"eos_token_id": [5, "a"]}, {"rms_norm_eps": "x"}, {"layer_types": [1, 2, 3]}),
    *({"sliding_window": "x", "use_sliding_window": True}, {"rope_scaling": {"type": "nosuch", "factor": 2}}),
    *({"rope_parameters": []}, {"quantization_config": []}, {"text_config": 5}, {"model_type": 5}),
]


@pytest.mark.parametrize("settings", IMPOSSIBLE, ids=str)
def test_impossible_settings_raise_nothing_but_refusals(folder, settings: dict) -> None:
    looks(folder(**settings))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"hidden_size": "48"}, ("'48' as hidden_size", "whole number")),
        ({"num_attention_heads": 0}, ("'0' as num_attention_heads", "whole number")),
        ({"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}, ("code of its own",)),
        ({"model_type": "nosuch"}, ("'nosuch'", "transformers")),
        ({"model_type": None}, ("no model_type",)),
        ({"hidden_act": "nosuch"}, ("llama configuration", "'nosuch'")),
    ],
    ids=str,
)
def test_both_readers_of_a_configuration_name_its_fault(folder, settings: dict, words: tuple[str, ...]) -> None:
    messages = looks(folder(**settings))
    assert len(messages) == 2
    for message in messages:
        assert all(word in message for word in words), message
        assert "executed" not in message


def test_a_folder_without_a_config_json_is_refused(folder) -> None:
    file = folder() / "config.json"
    file.unlink()
    messages = looks(file.parent)
    assert len(messages) == 2
    assert all(f"no config.json in {file.parent}" in message for message in messages)


def test_code_that_comes_with_a_model_never_runs(folder) -> None:
    """It is refused, or ignored where transformers has the architecture itself."""
    where = folder(auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
    (where / "own.py").write_text(f"open({str(where / 'ran')!r}, 'w')")
    loaded(where)
    config = where / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"own"'))
    assert "code of its own" in refusal(where)
    assert not (where / "ran").exists()


QUANTISED = LlamaConfig(**GPTQ)
NO_KERNEL = "CUDA error: no kernel image is available for execution on the device\nand more"


@pytest.mark.parametrize(
    ("error", "config", "word"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), QUANTISED, "ran out of memory"),
        (ImportError("optimum"), QUANTISED, "(gptq), and a library"),
        (ValueError("bits"), QUANTISED, "(gptq), which cannot be used"),
        (RuntimeError("bits"), LlamaConfig(), "damaged or incomplete"),
        (OSError("no file named model.safetensors found"), None, "no weights as safetensors"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/blobs/model.safetensors"), None, "No space left"),
        (OSError("connection error when loading a/b:\n500 for '/a/b/model.safetensors'"), None, "connection error"),
        (RuntimeError(NO_KERNEL), None, "no kernels for the GPU"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_explained_by_what_would_help(error: Exception, config: LlamaConfig | None, word: str) -> None:
    message = explain_load_error(error, config)
    assert word in message
    assert "\n" not in message
    assert ("no weights as safetensors" in message) == ("safetensors" in word)


@pytest.mark.parametrize("method", ["nvfp4", "gptq"])
def test_unsupported_quantised_weights_are_not_called_damaged(folder, monkeypatch, method: str) -> None:
    monkeypatch.setattr("transformers.quantizers.quantizer_gptq.is_optimum_available", lambda: False)
    message = refusal(folder(quantization_config={"quant_method": method, "bits": 4}))
    assert f"quantised ({method})" in message
    assert "damaged" not in message


@pytest.fixture
def unloaded(monkeypatch) -> None:
    """Loading the weights, which would take memory, fails."""
    monkeypatch.setattr(loader.AutoModelForCausalLM, "from_pretrained", None)


@pytest.mark.parametrize(
    ("width", "quantised", "short"),
    [(2_000_000, False, True), (2_000_000, True, True), (2_000, False, True), (2_000, True, False)],
)
def test_a_model_far_larger_than_its_files_is_refused_before_it_takes_memory(
    folder, unloaded, width: int, quantised: bool, short: bool
) -> None:
    """transformers would initialise the missing weights. Quantised ones may have less than a byte each."""
    message = refusal(folder(intermediate_size=width, **GPTQ if quantised else {}))
    assert ("too few for that" in message) == short


@pytest.mark.parametrize(
    ("settings", "how", "bytes_each", "refused"),
    [
        ({}, {}, 1, "float32"),
        (GPTQ, {}, 0, ""),  # their size in memory is not known
        ({"dtype": "bfloat16"}, {}, 5, "copy in bfloat16"),  # the step in C needs two beside the four of float32
        ({"dtype": "bfloat16"}, {"kernels": "reference"}, 5, ""),
        ({"dtype": "bfloat16"}, {"dtype": "bfloat16"}, 5, ""),
        ({"dtype": "float16"}, {}, 5, ""),  # which bfloat16 cannot hold: no step in C
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(
    folder, unloaded, monkeypatch, settings, how, bytes_each, refused
) -> None:
    where = folder(head_dim=16, **settings)
    monkeypatch.setattr(meta_model, "free_bytes", lambda device: bytes_each * find_model(where).parameters)
    message = refusal(where, **how)
    assert ("GB are free" in message) == bool(refused)
    assert refused in message
    assert meta_model.weight_bytes(100, torch.float32, packed=60) == 520
    assert meta_model.weight_bytes(100, torch.bfloat16, packed=60) == 200


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"draft": "mached"}, "'mached'"),
        ({"target": loader.WEIGHTS / "target", "draft": "no/such/folder"}, "'no/such/folder'"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 2}, "max_num_batched_tokens"),
        ({"kv_bytes": 0.5}, "kv_bytes"),
        ({"kernels": "tritn"}, "kernels"),
        ({"target": "./none"}, "'./none'"),
        ({"target": "/" + "x" * 100_000 + "/none"}, "x" * 39 + "…" + "x" * 155 + "/none'"),
        ({"target": __file__}, "is a file"),
        ({"target": "https://hub.example/some/model-1.5B/tree/main"}, "Write it as some/model-1.5B."),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_arguments_are_refused_before_anything_is_loaded(monkeypatch, arguments: dict, word: str) -> None:
    called: list[object] = []
    monkeypatch.setattr("lab.models.loader.load_model", lambda where, **_: called.append(where))
    with pytest.raises(LabError) as refused:
        load_engine(**arguments, device="cpu")
    assert word in str(refused.value)
    assert not called
