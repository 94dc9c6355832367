"""What cannot be decoded is refused with its reason and the nearest thing that works, and no refusal recommends another
model that is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import RecurrentGemmaConfig, T5Config

from lab import LabError, SamplingParams, load_engine
from lab.memory.model_memory import find_model
from lab.models.support import WORKING
from tests.engine.test_recurrent import KINDS as RECURRENT_KINDS
from tests.engine.test_windows import KINDS
from tests.models.conftest import WEIGHTS
from tests.models.test_numerical_check import TAKEN, random_model

Change = Callable[[Path], object]
BASE = "some/base"


def adapter(where: Path) -> None:
    for file in where.iterdir():
        file.unlink()
    (where / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": BASE}), "utf-8")
    save_file({"lora_A.weight": torch.ones(2, 2)}, where / "adapter_model.safetensors")


def gguf(where: Path) -> None:
    for file in where.iterdir():
        file.unlink()
    (where / "model-Q4_K_M.gguf").write_bytes(b"GGUF")


def weights(name: str, how: Callable[[torch.Tensor], object]) -> Change:
    def change(where: Path) -> None:
        found = load_file(where / WEIGHTS)
        how(found[name])
        save_file(found, where / WEIGHTS, metadata={"format": "pt"})

    return change


def configured(config: object) -> Change:
    return lambda where: config.save_pretrained(where)


def quantised(method: str) -> Change:
    def change(where: Path) -> None:
        config = json.loads((where / "config.json").read_text("utf-8"))
        saved = {"quantization_config": {"quant_method": method, "bits": 4}}
        (where / "config.json").write_text(json.dumps(config | saved), "utf-8")

    return change


def packed(method: str) -> Change:
    """Quantised weights under other names, as exllama's are."""

    def change(where: Path) -> None:
        quantised(method)(where)
        found = load_file(where / WEIGHTS)
        parts = {name.replace(".weight", ".trellis"): found.pop(name).short() for name in [*found] if "proj" in name}
        save_file(found | parts, where / WEIGHTS, metadata={"format": "pt"})

    return change


def minimax(where: Path) -> None:
    (where / WEIGHTS).unlink()
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    random_model("minimax", layer_types=kinds).save_pretrained(where)


EMBEDDING, HEAD, UP = "model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.up_proj.weight"
HALF = {"dtype": "float16"}
TABLE: dict[str, tuple[Change, dict[str, str], str, str]] = {  # what is changed, how it is loaded, reason, advice
    "adapter": (adapter, {}, f"is an adapter (LoRA) for {BASE}", "merge_and_unload()"),
    "GGUF": (gguf, {}, "is in GGUF, which llama.cpp reads", "the model that it was made from"),
    "nvfp4": (quantised("nvfp4"), {}, "weights are quantised (nvfp4)", "unquantised weights"),
    "unknown form": (packed("exl3"), {}, "weights are quantised (exl3), in a form", "unquantised weights"),
    "t5": (configured(T5Config()), {}, "encoder-decoder", "models work"),
    "Griffin": (configured(RecurrentGemmaConfig()), {}, "keep their state in a way of their own", "models work"),
    "minimax": (minimax, {}, "% off", "models work"),
    "NaN in the table": (weights(EMBEDDING, lambda it: it[5].fill_(torch.nan)), {}, f"{EMBEDDING}' holds NaN", "copy"),
    "NaN in the head": (weights(HEAD, lambda it: it.fill_(torch.nan)), {}, f"{HEAD}' holds NaN", "another copy"),
    "NaN in half": (weights(HEAD, lambda it: it.fill_(torch.nan)), HALF, f"{HEAD}' holds NaN", "another copy"),
    "overflow": (weights(UP, lambda it: it.mul_(1e5)), HALF, "cannot be decoded in float16", "dtype='bfloat16' or"),
    "overflow inside": (weights(UP, lambda it: it.mul_(3e4)), HALF, "not finite", "dtype='bfloat16' or 'float32'"),
}


@pytest.mark.parametrize(("change", "how", "reason", "advice"), TABLE.values(), ids=TABLE)
def test_a_refusal_has_the_reason_and_the_nearest_thing_that_works(folder, change, how, reason, advice) -> None:
    where = folder()
    change(where)
    with pytest.raises(LabError) as refused:
        load_engine(where, device="cpu", **how)
    message = str(refused.value)
    assert reason in message
    assert advice in message.partition(reason)[2]
    assert "\n" not in message
    assert len(re.findall(r"[.)](?= [A-Z]|$)", re.sub(r"\([^()]*\)$", "", message.strip()))) <= 2, message
    assert not re.search(r"(MiniMax|Granite)[^.]* work", message)
    assert "stock_attention" not in message
    if "dtype=" in advice:
        load_engine(where, device="cpu", dtype="bfloat16")


def test_every_model_that_a_refusal_names_is_one_that_the_tests_decode_with() -> None:
    assert set(WORKING.values()) <= {*TAKEN, *KINDS, *RECURRENT_KINDS}


def test_other_readers_name_adapters_and_gguf_too(folder, tmp_path) -> None:
    file = tmp_path / "model.GGUF"
    file.write_bytes(b"GGUF")
    with pytest.raises(LabError, match=r"model\.GGUF' is in GGUF"):
        load_engine(file, device="cpu")
    for name in ("adapter", "GGUF"):
        where = folder()
        TABLE[name][0](where)
        with pytest.raises(LabError, match=re.escape(TABLE[name][2])):
            find_model(where)
        shutil.rmtree(where)


def test_an_adapter_beside_the_base_is_said_to_be_left_out(folder) -> None:
    where = folder()
    plain = load_engine(where, device="cpu")
    save_file({"lora_A.weight": torch.ones(2, 2)}, where / "adapter_model.safetensors")
    engine = load_engine(where, device="cpu")
    runs = [it.generate("a", sampling=SamplingParams(max_tokens=3)) for it in (plain, engine)]
    assert runs[0].token_ids == runs[1].token_ids
    assert [any("adapter_model.safetensors" in note for note in run.started.notes) for run in runs] == [False, True]
