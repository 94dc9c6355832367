"""Each bench measures what it reports, on tiny models: the right rows, of the same work, and their ratios."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lab import Engine, EngineConfig, LabError, SamplingParams, UnsupportedModelError
from lab.bench import __main__ as command
from lab.bench import drafter_bench, ladder, llama, step_times, verifiers, vllm_bench, window_sweep
from lab.bench.ladder import ladder_configs, time_rows
from lab.bench.vllm_bench import accepted_by_round
from lab.measure.workload import PROMPTS
from lab.trace.events import Distributions
from lab.vllm.completion import CompletionEnd, ReportedRounds
from tests import tiny_models

TWO = ("The king", "A fox")


@pytest.fixture
def bench(lab, monkeypatch, tmp_path, capsys):
    """Runs a bench's command in this process; returns its record and what it printed."""

    def run(*arguments: str, engine: Engine = lab) -> tuple[dict, str]:
        monkeypatch.setattr(command, "load_engine", lambda *_, **__: engine)
        monkeypatch.setattr(sys, "argv", ["bench", *arguments, "--json", str(tmp_path / "out.json")])
        assert command.main() == 0
        return json.loads((tmp_path / "out.json").read_text()), capsys.readouterr().out

    return run


def silent(line: str) -> None:
    pass


# -- ladder ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_ladder_times_every_rung_and_both_baselines(bench, monkeypatch) -> None:
    monkeypatch.setattr(ladder, "PROMPTS", TWO)
    monkeypatch.setattr(ladder, "GAMMAS", (2, 3))
    monkeypatch.setattr(ladder, "held_out_prompts", lambda: ["Long ago", "In the forest"])
    result, table = bench("ladder", "--max-tokens", "8", "--repeats", "2")
    stock = ["cache, nothing recorded", "transformers generate", "transformers assisted generation"]
    assert [row["name"] for row in result["ladder"]] == [*ladder_configs(result["best_gamma"]), *stock]
    assert result["best_gamma"] in (2, 3)
    greedy, _, drawn, drafted = result["unseen"]
    assert (greedy["name"], drafted["name"]) == ("greedy, cache", "temperature 0.8, speculation (gamma 4)")
    ratios, medians = result["ratios"], {row["name"]: row["median"] for row in result["ladder"]}
    unseen = "speculation / cache, unseen texts, temperature 0.8"
    assert ratios[unseen] == drafted["median"] / drawn["median"]
    assert ratios["cache / transformers generate"] == medians["cache"] / medians["transformers generate"]
    for row in result["ladder"] + result["gammas"] + result["unseen"]:
        assert row["samples"] == 4
        assert 0 < row["lower"] <= row["median"] <= row["upper"]
    for name in (*medians, *ratios):
        assert name in table


def test_rows_of_the_ladder_are_of_the_same_work(lab) -> None:
    for name, gamma in (("transformers generate", None), ("transformers assisted", 3)):
        assert ladder.timed(lab, name, ladder.stock_generate(lab, 9, gamma=gamma), "The king")[0] == 9
    for captured in (False, True):  # a last, shorter window has its own graph, and the prompt decides which
        asked, engine = [], SimpleNamespace(device="cpu", cuda_graphs=captured)
        (row,) = time_rows(engine, {"cache": lambda prompt, asked=asked: asked.append(prompt) or 1}, "AB", 1, silent)
        assert row["samples"] == 2
        assert asked == [*("AB" if captured else "A"), "A", "B"]


# -- llama.cpp -------------------------------------------------------------------------------


def test_without_llama_cpp_the_command_says_what_to_install(bench, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(SystemExit):
        bench("llama")
    assert "pip install -r requirements-optional.txt" in capsys.readouterr().err


def test_the_gguf_file_holds_the_weights(lab, tmp_path) -> None:
    gguf = pytest.importorskip("gguf", reason="the package gguf is not installed (requirements-optional.txt)")
    model, config = lab.target.model, lab.target.model.config
    llama.write_gguf(model, tmp_path / "model.gguf", "bf16")
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
        llama.write_gguf(tiny_models.engine("gpt2").target.model, tmp_path / "other.gguf", "f32")


def test_llama_cpp_gives_the_same_tokens_and_every_row_is_timed(bench, monkeypatch) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (requirements-optional.txt)")
    monkeypatch.setattr(llama, "PROMPTS", TWO)
    result, table = bench("llama", "--max-tokens", "8", "--repeats", "1")
    names = ["cache", "cache + speculation (gamma 6)", *(f"llama.cpp, {dtype}" for dtype in llama.DTYPES)]
    assert [row["name"] for row in result["rows"]] == names
    assert result["alike"]["f32"] == [8, 8]
    assert len(result["ratios"]) == 2 * len(llama.DTYPES)
    assert "llama.cpp, f16" in table


# -- roofline and logprobs -------------------------------------------------------------------


def test_the_roofline_has_every_kind_of_step(bench) -> None:
    lab = tiny_models.engine("llama", "identical")
    result, _ = bench("roofline", "--max-tokens", "8", "--repeats", "2", engine=lab)
    rows = {row["name"]: row for row in result["rows"]}
    many = f"decode, {step_times.TOGETHER} at once"
    speculative = ["draft, 4 passes", "verify, 4 proposals"]
    assert list(rows) == ["prefill", "decode", "decode, INT8", "decode, no cache", many, *speculative]
    for row in rows.values():
        assert row["steps"] >= 2
        assert min(row["least_ms"], row["ms"], row["share"]) > 0
        assert row["bound"] in ("memory", "compute", "neither")
    decode, verify = rows["decode"], rows["verify, 4 proposals"]
    assert decode["steps"] == 2 * 7
    assert verify["steps"] == 2  # a second round has room for only one proposal
    assert rows["prefill"]["flops"] > rows[many]["flops"] > verify["flops"] > decode["flops"]
    assert rows["decode, INT8"]["bytes"] < decode["bytes"] < rows[many]["bytes"]
    assert rows["draft, 4 passes"]["bytes"] > 3.9 * lab.draft.weight_bytes
    assert result["prefill_tokens"] >= tiny_models.CONTEXT // 2
    assert result["machine"]["torch_threads"]
    alone = step_times.run_roofline(tiny_models.engine("llama"), 6, 1, silent)["rows"]
    assert [row["name"] for row in alone] == list(rows)[:5]


@pytest.mark.slow
def test_every_round_is_repeated_with_recording_as_the_only_difference(bench, monkeypatch) -> None:
    monkeypatch.setattr(step_times, "PROMPTS", TWO)
    asked: list[tuple[int, tuple[int, ...]]] = []
    real = step_times.finish

    def watched(engine, requests, config):
        runs, seconds = real(engine, requests, config)
        wanted = requests[0].sampling.logprobs
        assert any(isinstance(event, Distributions) for event in runs[0].events) == bool(wanted)
        asked.append((wanted, tuple(runs[0].token_ids)))
        return runs, seconds

    monkeypatch.setattr(step_times, "finish", watched)
    result, table = bench("logprobs", "--logprobs", "3", "--max-tokens", "12", "--repeats", "2")
    for wanted in (0, 3):
        assert {tokens for own, tokens in asked if own == wanted} == {tokens for _, tokens in asked}
    assert result["steps"] > 4
    assert min(result["plain_ms"], result["recorded_ms"]) > 0
    added = result["added_ms"]
    assert added["lower"] <= added["median"] <= added["upper"]
    assert f"{added['median']:.4g} ({added['lower']:.4g} to {added['upper']:.4g})" in table


@pytest.mark.slow
def test_every_drafter_continues_every_text(bench, monkeypatch) -> None:
    texts = drafter_bench.held_out_prompts()[:6]
    monkeypatch.setattr(drafter_bench, "held_out_prompts", lambda: texts)
    result, table = bench("drafters", "--max-tokens", "8", "--repeats", "1")
    rows = {(row["drafter"], row["temperature"]): row for row in result["rows"]}
    assert {name for name, _ in rows} >= {"draft", "ngram", "early_exit"}
    for (name, temperature), row in rows.items():
        assert re.search(rf"^{name} +{temperature:.4g} ", table, re.MULTILINE)
        assert row["speedup"]["low"] <= row["speedup"]["value"] <= row["speedup"]["high"]
        if name == "draft":
            assert 1 < row["length"]["value"] < 5
            assert 0 < row["positions"][0] <= 1
            assert row["cost"] > 0


@pytest.mark.slow
def test_every_rule_verifies_every_text(bench, monkeypatch) -> None:
    texts = verifiers.held_out_prompts()[:6]
    monkeypatch.setattr(verifiers, "held_out_prompts", lambda: texts)
    result, table = bench("verifiers", "--max-tokens", "8", "--repeats", "1")
    assert len(result["rows"]) == 7
    for name, row in result["rows"].items():
        assert name in table
        assert 1 <= row["length"]["low"] <= row["length"]["value"] <= row["length"]["high"] <= 5
        assert (row["total_variation"] > 0) == (row["rule"] == "typical")


# -- adaptive window -------------------------------------------------------------------------


@pytest.fixture
def pair(monkeypatch):
    monkeypatch.setattr(window_sweep, "GAMMAS", (1, 3))
    for name in ("STORIES", "PROGRAMS"):
        monkeypatch.setattr(window_sweep, name, getattr(window_sweep, name)[:2])
    return {"matched": tiny_models.engine("llama", "good"), "mismatched": tiny_models.engine("llama", "bad")}


@pytest.mark.slow
def test_every_window_is_timed_on_every_kind_of_prompt_by_engines_that_fit_together(pair) -> None:
    """On a GPU, an engine's cache may otherwise take most of what the engines before it have left."""
    made = []

    class Counted(Engine):
        def clone(self, **how) -> Engine:
            made.append(super().clone(**how))
            return made[-1]

    for engine in pair.values():
        engine.__class__ = Counted
    result = json.loads(json.dumps(window_sweep.run_window(pair.get, max_tokens=6, repeats=1, report=silent)))
    assert list(result["rows"]) == ["off", "gamma 1", "gamma 3", "adaptive"]
    assert [kind["draft"] for kind in result["mix"].values()] == ["good", "good", "bad"]
    for row in result["rows"].values():
        assert 0 < row["lower"] <= row["mix"] <= row["upper"]
        assert min(row[kind] for kind in result["mix"]) > 0
    assert len(made) == 4 * 3
    assert max(sum(engine.occupancy()) for engine in made) < pair["matched"].default_num_blocks(EngineConfig()) / 8
    adaptive = [name for name, config in window_sweep.window_configs(100).items() if config.adaptive_window]
    assert adaptive == ["adaptive"]


def test_a_rate_is_all_tokens_over_all_time_of_a_repeat(pair, monkeypatch) -> None:
    calls = Counter()

    def timed(engine, request, config) -> tuple[int, float]:
        """Ten tokens, in as many seconds as the setting has draft tokens and one more, doubled for code; repeat after
        repeat takes longer."""
        proposed = config.num_speculative_tokens if config.speculative == "draft" else 0
        sampling = request.sampling
        what = engine.draft.name, request.prompt, sampling.temperature, sampling.seed
        assert (sampling.max_tokens, sampling.ignore_eos) == (6, True)
        calls[what, config] += 1
        again = calls[what, config] - 1 or 100  # the first is not counted
        return 10, again * (proposed + 1) * (2 if request.prompt in window_sweep.PROGRAMS else 1)

    monkeypatch.setattr(window_sweep, "timed", timed)
    rows = window_sweep.run_window(pair.get, max_tokens=6, repeats=3, report=silent)["rows"]
    for name, seconds in {"off": 1, "gamma 1": 2, "gamma 3": 4, "adaptive": 4}.items():
        rates = {kind: rate * seconds for kind, rate in rows[name].items()}
        assert rates == {"mix": 3.75, "lower": 3.125, "upper": 5.625, "easy": 5, "middling": 2.5, "hard": 5}
    stories, programs = window_sweep.STORIES, window_sweep.PROGRAMS
    kinds = (("good", stories, 0.0), ("good", programs, 1.5), ("bad", stories, 0.0))
    assert {what for what, _ in calls} == {
        (draft, prompt, temperature, seed)
        for draft, prompts, temperature in kinds
        for seed, prompt in enumerate(prompts)
    }
    rows = {"off": {"mix": 100.0}, "gamma 1": {"mix": 80.0}, "gamma 3": {"mix": 120.0}, "adaptive": {"mix": 150.0}}
    found = window_sweep.against_fixed(rows, "mix")
    assert found == {"worst": "gamma 1", "to_worst": 1.875, "best": "gamma 3", "to_best": 1.25}


# -- vLLM ------------------------------------------------------------------------------------

GAMMA = 3


@dataclass
class Standin:
    """Gives a fixed answer to each prompt."""

    answers: dict[str, tuple[str, ReportedRounds | None]]
    address: str = "http://127.0.0.1:8000"
    serves: tuple[str, ...] = ("tiny",)

    async def models(self) -> tuple[str, ...]:
        return self.serves

    async def complete(self, model: str, prompt: str, sampling: SamplingParams) -> AsyncIterator[str | CompletionEnd]:
        text, reported = self.answers[prompt]
        yield text[:5]
        yield text[5:]
        yield CompletionEnd("length", 4, sampling.max_tokens, reported)


@pytest.mark.slow
def run_vllm(*given: Any) -> Any:
    """Run it in a thread: a browser of other tests may have an event loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(vllm_bench.run_vllm, *given).result()


def test_rounds_of_vllm_are_compared_and_a_server_without_any_is_refused(monkeypatch) -> None:
    """The stand-in drafts whole windows to the end, as vLLM does: its last round has more draft tokens."""
    monkeypatch.setattr(vllm_bench, "PROMPTS", prompts := PROMPTS[:2])
    engine, answers = tiny_models.engine("llama", "good", shape={"num_hidden_layers": 3}), {}
    for prompt in prompts:
        config = EngineConfig(speculative="draft", num_speculative_tokens=GAMMA)
        run = engine.generate(prompt, config, SamplingParams(max_tokens=24))
        accepted = (*accepted_by_round(run, GAMMA), 1)
        answers[prompt] = run.text, ReportedRounds((GAMMA,) * len(accepted), accepted)
    standin = Standin(answers)
    result = run_vllm(engine, standin, "draft", 24, silent)
    assert (result["gamma"], [row["prompt"] for row in result["rows"]]) == (GAMMA, list(prompts))
    for row in result["rows"]:
        assert row["same_text"]
        assert row["alike"] == len(row["ours"]) > 4
        assert 0 < sum(row["ours"]) < GAMMA * len(row["ours"])

    text, rounds = answers[prompts[0]]
    other = list(rounds.accepted)
    other[3] = (other[3] + 1) % (GAMMA + 1)
    answers[prompts[0]] = text + "!", replace(rounds, accepted=tuple(other))
    first, *others = run_vllm(engine, standin, "draft", 24, silent)["rows"]
    assert (first["same_text"], first["alike"]) == (False, 3)
    assert all(row["same_text"] for row in others)

    for reported in (None, ReportedRounds((), ())):
        answers[prompts[0]] = "a text", reported
        with pytest.raises(LabError, match="per-request-spec-decode-metrics detailed"):
            run_vllm(engine, standin, "draft", 24, silent)
    with pytest.raises(LabError, match="8000 serves no model"):
        run_vllm(engine, Standin({}, serves=()), "draft", 24, silent)
