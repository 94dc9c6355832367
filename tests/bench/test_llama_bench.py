"""The comparison with llama.cpp: the message without it, the GGUF file, and that both give the same tokens."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from lab import EngineConfig, LabError, SamplingParams, UnsupportedModelError
from lab.bench import __main__ as command
from lab.bench import llama
from lab.bench.ladder import LadderRow
from lab.bench.llama import llama_cpp, run_llama
from tests import tiny_models


@pytest.fixture(scope="module")
def lab():
    return tiny_models.engine("llama", "good")


def test_without_llama_cpp_the_command_says_what_to_install(lab, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setattr(command, "load_engine", lambda *_, **__: lab)
    monkeypatch.setattr(sys, "argv", ["bench", "llama"])
    with pytest.raises(SystemExit):
        command.main()
    assert "pip install -r requirements-optional.txt" in capsys.readouterr().err


def test_the_gguf_file_holds_the_weights(lab, tmp_path):
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed (requirements-optional.txt)")
    from lab.bench.gguf_file import write_gguf

    model, config = lab.target.model, lab.target.model.config
    write_gguf(model, tmp_path / "model.gguf", "bf16")
    file = gguf.GGUFReader(tmp_path / "model.gguf")
    assert file.fields["llama.attention.head_count_kv"].contents() == config.num_key_value_heads
    found = {tensor.name: torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type)) for tensor in file.tensors}
    assert len(found) == len(list(model.parameters()))
    layer = model.model.layers[1]
    for name, weight in (("attn_v", layer.self_attn.v_proj), ("ffn_down", layer.mlp.down_proj)):
        torch.testing.assert_close(found[f"blk.1.{name}.weight"], weight.weight.data.bfloat16().float())
    torch.testing.assert_close(found["blk.1.attn_norm.weight"], layer.input_layernorm.weight.data)
    turned, half = layer.self_attn.q_proj.weight.data.bfloat16().float(), config.head_dim // 2
    torch.testing.assert_close(found["blk.1.attn_q.weight"][:4], turned[[0, half, 1, half + 1]])
    with pytest.raises(UnsupportedModelError, match="only plain Llama models"):
        write_gguf(tiny_models.engine("gpt2").target.model, tmp_path / "other.gguf", "f32")


def test_llama_cpp_gives_the_same_tokens(lab, tmp_path: Path):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (requirements-optional.txt)")
    from lab.bench.gguf_file import write_gguf

    write_gguf(lab.target.model, tmp_path / "model.gguf", "f32")
    with llama_cpp(tmp_path / "model.gguf", lab.context_length, 1) as decode:
        for prompt in ("The king", "A fox met a wolf"):
            run = lab.generate(prompt, EngineConfig(), SamplingParams(max_tokens=12, ignore_eos=True))
            assert decode(list(run.prompt_token_ids), 12) == run.token_ids


def test_every_row_is_timed(lab, monkeypatch, tmp_path, capsys):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (requirements-optional.txt)")
    monkeypatch.setattr(llama, "PROMPTS", ("The king", "A fox"))
    monkeypatch.setattr(command, "load_engine", lambda *_, **__: lab)
    out = tmp_path / "llama.json"
    monkeypatch.setattr(sys, "argv", ["bench", "llama", "--max-tokens", "8", "--repeats", "1", "--json", str(out)])
    command.main()
    result = json.loads(out.read_text())
    names = ["cache", "cache + speculation (gamma 6)", *(f"llama.cpp, {dtype}" for dtype in llama.DTYPES)]
    assert [row["name"] for row in result["rows"]] == names
    assert result["alike"]["f32"] == [8, 8]
    assert len(result["ratios"]) == 2 * len(llama.DTYPES)
    assert "llama.cpp, f16" in capsys.readouterr().out


def test_the_record_names_the_draft_that_guesses(lab, monkeypatch):
    @contextmanager
    def decoder(*_):
        yield lambda prompt, count: [0] * count

    monkeypatch.setattr(llama, "PROMPTS", ("The king", "A fox"))
    monkeypatch.setattr(llama, "_imported", lambda: (lambda *_: None, "0"))
    monkeypatch.setattr(llama, "llama_cpp", decoder)
    result = run_llama(lab, 4, 1, lambda line: None)
    assert (result["target"], result["draft"]) == (lab.target.name, lab.draft.name)


def test_ratios_are_in_the_order_of_the_rows():
    """The order of a set would differ from process to process."""
    theirs = [f"llama.cpp, {letter}" for letter in "qwertyuiop"]
    rows = [LadderRow(name, rate, rate, rate, 1) for rate, name in enumerate(["cache", *theirs], 1)]
    found = llama._ratios(rows, ["cache"])
    assert list(found) == [f"cache / {name}" for name in theirs]
    assert found["cache / llama.cpp, w"] == 1 / 3


def test_only_an_engine_on_a_cpu_is_compared(lab, monkeypatch):
    monkeypatch.setattr(type(lab), "device", "cuda:0")
    with pytest.raises(LabError, match="Add --device cpu"):
        run_llama(lab, 8, 1, print)
