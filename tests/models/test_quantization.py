"""INT8 weights. Tests that need a library are skipped where it is not installed (requirements-optional.txt)."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig

from lab import ConfigError, EngineConfig, SamplingParams, load_engine
from lab.models.quantization import refuse_quantized, resolve_quantization

SAMPLING = SamplingParams(max_tokens=24, ignore_eos=True)
DTYPES = {"torchao-int8": "float32", "bitsandbytes-int8": "float16"}
"""What dtype="auto" means with each of them on a CPU."""
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture
def folder(saved):
    return saved / "llama"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])])
@pytest.mark.parametrize("choice", DTYPES)
class TestInt8:
    @pytest.fixture
    def engines(self, folder, choice, device):
        """A model in the dtype that the other computes in, and that with INT8 weights."""
        pytest.importorskip(choice.removesuffix("-int8"), reason="an optional library")
        dtype = DTYPES[choice] if device == "cpu" or choice == "bitsandbytes-int8" else "bfloat16"
        plain = load_engine(folder, device=device, dtype=dtype)
        int8 = load_engine(folder, folder, device=device, quantization=choice)
        assert int8.dtype == dtype
        return plain, int8

    def test_an_int8_model_decodes_drafts_and_is_close_to_the_original(self, engines):
        _, int8 = engines
        for config in (EngineConfig(paged=True), EngineConfig(kv_dtype="int8")):
            assert len(int8.generate("Once", config, SAMPLING).token_ids) == SAMPLING.max_tokens
        drafted = int8.generate("Once", EngineConfig(speculative="draft"), SAMPLING)
        assert drafted.metrics.mean_acceptance_length > 3  # the draft is the target, quantised the same way
        logits = []
        for engine in engines:
            with engine.target.stock_attention() as model, torch.inference_mode():
                logits.append(model(torch.arange(3, 40, device=engine.device)[None]).logits.float())
        assert 0 < ((logits[1] - logits[0]).norm() / logits[0].norm()).item() < 0.1

    def test_stored_tensors_count_and_their_change_is_noticed(self, engines):
        plain, int8 = (engine.target for engine in engines)
        linear = [module for module in plain.model.model.layers.modules() if isinstance(module, torch.nn.Linear)]
        saved = sum(module.weight.nbytes - module.weight.numel() for module in linear)
        rows = sum(module.out_features for module in linear)
        beside = int8.weight_bytes - (plain.weight_bytes - saved)
        assert 4 * rows <= beside <= 8 * rows  # a float32 scale per row, and torchao's zero point
        before = int8.identity()
        assert int8.identity() == before
        weight = int8.model.model.layers[0].mlp.up_proj.weight
        with torch.no_grad():
            getattr(weight, "qdata", weight).bitwise_not_()
        assert int8.identity() != before


INT8 = {"quantization": "bitsandbytes-int8"}


@pytest.mark.parametrize(
    ("settings", "modules", "word"),
    [
        ({"quantization": "int8"}, {}, "quantization must be"),
        *((INT8 | {"dtype": dtype}, {}, f"dtype='{dtype}'") for dtype in ("float32", "bfloat16")),
        ({"dtype": "int8"}, {}, "dtype must be"),
        ({"quantization": "torchao-int8", "device": None, "device_map": {"": "disk"}}, {}, "on disk"),
        ({"quantization": "torchao-int8"}, {"torchao": None, "torchao.quantization": None}, "package torchao"),
        (INT8, {"bitsandbytes": None}, "package bitsandbytes"),
        (INT8, {"bitsandbytes": SimpleNamespace(supported_torch_devices={"cuda", "xpu"})}, "which knows cuda, xpu"),
    ],
)
def test_incompatible_settings_and_missing_libraries_are_refused(folder, monkeypatch, settings, modules, word):
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ConfigError, match=word):
        load_engine(folder, **{"device": "cpu"} | settings)


def test_quantised_weights_are_not_quantised_again():
    assert resolve_quantization(None, "auto", "cpu") == (None, "auto")
    config = LlamaConfig()
    refuse_quantized(config, "m")
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(ConfigError, match="gptq"):
        refuse_quantized(config, "m")
