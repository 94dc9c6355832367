"""The GPU bench, tested without a GPU: tiny shapes, kernels in Triton's interpreter, every part and the recording; and
its models, which output a script."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

from lab import EngineConfig, SamplingParams
from lab.backends.gpu import fused_product as product
from lab.backends.gpu import paged_attention as attend_kernel
from lab.backends.gpu.fused_layer import FusedLayer
from lab.backends.gpu.gpu_backend import GpuBackend
from lab.bench.gpu import kernels_alone, large, pair
from lab.bench.gpu.large import PROMPT_TOKENS, time_prefill
from lab.bench.gpu.random_models import END, TINY_TARGET, Scripted, draft_script, engine, prompt, tokenizer
from lab.bench.gpu.random_models import random_script as random_tokens
from lab.bench.gpu.session import PARTS, run_gpu
from lab.bench.gpu.sheet import Sheet
from lab.bench.output import format_record
from lab.engine.adaptive_window import tokens_per_round
from lab.kv_cache.attention_metadata import BlockPlan
from lab.kv_cache.storage import bytes_per_token
from lab.load import new_engine
from lab.measure.measuring import steps
from lab.trace.events import FellBack
from tests.captured import Again, captured_engine, pretend_to_capture
from tests.scripted_pair import CPU, OPTIONS, scripted_pair

CASE = {"context": 64, "batch": 1, "format": "auto", "blocks": "sdpa", "microseconds": 1.0, "gb_per_second": 77.0}
PART = {"device": "cpu", "dtype": "auto", "small": True}
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles here, and for no CPU")


def random_script() -> torch.Tensor:
    return random_tokens(TINY_TARGET, CPU)


def scripted(script: torch.Tensor, **how: float) -> Scripted:
    return Scripted(TINY_TARGET, script, "target", **OPTIONS, **how)


# -- the parts -------------------------------------------------------------------------------


@interpreted
def test_a_kernel_that_computes_something_else_gets_no_figure(monkeypatch):
    right = attend_kernel.attend
    monkeypatch.setattr(attend_kernel, "attend", lambda *args, **how: 1.1 * right(*args, **how))
    monkeypatch.setattr(product, "_launch", lambda out, *_, **__: out.zero_())
    monkeypatch.setattr(kernels_alone, "ROWS", (1,))
    monkeypatch.setattr(kernels_alone, "COLUMNS", (("int8", "paged"), ("auto", "sdpa")))
    kernels_alone.run_attention(sheet := Sheet(), device=CPU, dtype=torch.float32, small=True)
    assert {case["blocks"] for case in sheet.result["cases"]} == {"sdpa"}
    assert "off by" in sheet.result["failures"]["64 tokens x 1, int8 paged"]
    assert sheet.result["products"] == []
    assert len([what for what in sheet.result["failures"] if what.startswith("tiny: ")]) == 4


@interpreted
@pytest.mark.slow
def test_every_part_measures(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels_alone, "ROWS", (1, 5))
    out = tmp_path / "gpu.json"
    run_gpu([1, 2, 3, 4], out, lambda line: None, device="cpu", small=True)
    result = json.loads(out.read_text("utf-8"))
    one, two, three, four = (entry["result"] for entry in result["parts"].values())
    for entry in result["parts"].values():
        assert "failure" not in entry
        assert "failures" not in entry["result"]
    assert result["machine"]["torch"] == torch.__version__

    assert {"cache", "transformers generate", "transformers assisted generation"} <= set(one["rows"])
    assert ("cache, no graphs" in one["rows"]) == one["cuda_graphs"]
    assert "cache / transformers generate" in one["ratios"]
    assert "transformers generate, static cache" in one["static"]
    assert {"decode", "decode, layers of transformers"} <= set(two["decode"])
    shape = {"kv_heads": TINY_TARGET.kv_heads, "head_dim": TINY_TARGET.head_dim, "dtype": torch.float32}
    token = bytes_per_token("auto", layers=1, **shape)
    for row in two["decode"].values():
        cached = (PROMPT_TOKENS + row["tokens"] / 2) * TINY_TARGET.layers * token
        assert row["mean_bytes"] == pytest.approx(two["target_bytes"] + cached)
        assert 0 < row["of_copy"] == pytest.approx(row["gb_per_second"] / two["copy_gb_per_second"])
        in_pass = row["mean_bytes"] / row["pass_ms"] / 1e6  # GB/s
        assert row["of_copy_in_pass"] == pytest.approx(in_pass / two["copy_gb_per_second"])
    assert {(row["acceptance"], row["gamma"], row["spread"]["samples"]) for row in two["speculation"]} == {
        (rate, gamma, 3) for rate in (0.5, 0.7, 0.9) for gamma in (1, 3)
    }
    assert {"auto", "math", "flash"} <= set(two["prefill"])
    assert len({(case["format"], case["blocks"]) for case in three["cases"]}) == len(kernels_alone.COLUMNS)
    for case in three["cases"]:
        read = case["context"] * case["batch"] * token / case["microseconds"] / 1000  # GB/s
        assert case["format"] != "auto" or case["gb_per_second"] == pytest.approx(read)
    assert [(row["context"], row["splits"]) for row in three["splits"]] == [(64, 1), (64, 2), (64, 4)]
    assert len(three["products"]) == 4 * 2 * 2  # products of a layer, numbers of rows, implementations
    rows = four["rows"]
    assert rows["contiguous"]["most_sequences"] < rows["paged"]["most_sequences"]
    assert rows["contiguous"]["waited_then"] > 0 == rows["paged"]["waited_then"]
    assert rows["paged"]["blocks"] < rows["paged INT8"]["blocks"]
    assert len({row["output_tokens"] for row in rows.values()}) == 1  # the same work


@pytest.mark.skipif(torch.cuda.is_available(), reason="the bench itself runs this there")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, about the NaN of padding
def test_where_steps_are_captured_the_pair_has_rows_without_graphs_and_without_scheduling_ahead(monkeypatch):
    """None of them fails, and each runs as its name says."""
    lab, rows = captured_engine(monkeypatch), {}
    monkeypatch.setattr(pair, "load_engine", lambda **how: lab)
    monkeypatch.setattr(pair, "PROMPTS", ("Once",))
    monkeypatch.setattr(pair, "time_rows", lambda engine, found, *how: rows.update(found) or [])
    sheet = Sheet()
    pair.run_pair(sheet, device=lab.target.device, dtype="float32", small=True)
    assert "failures" not in sheet.result
    launched, launch = [], GpuBackend.launch_ahead
    monkeypatch.setattr(GpuBackend, "launch_ahead", lambda *args: launched.append(args) or launch(*args))
    ahead = {}
    for name in ("cache", "cache, no graphs", "cache, no async scheduling"):
        launched.clear()
        assert rows[name]("Once") == 6
        ahead[name] = bool(launched)
    assert ahead == {"cache": True, "cache, no graphs": False, "cache, no async scheduling": False}


@interpreted
@pytest.mark.slow
def test_attention_back_ends_read_a_prompt_within_the_same_layers(monkeypatch):
    """Otherwise the difference between two rows would be that between layers, too."""
    target = scripted(random_script())
    words = tokenizer(target.vocabulary)
    fused, unfused = (new_engine(target, words, kernels="triton", fuse_layers=fuse) for fuse in (True, False))
    asked: set[tuple[str, bool]] = set()
    forward = Scripted.forward

    def spied(model, token_ids, positions, plan, keep):
        layers = {type(module) for module in model.model.modules()}
        asked.add(("auto" if isinstance(plan, BlockPlan) else plan.sdpa, FusedLayer in layers))
        return forward(model, token_ids, positions, plan, keep)

    monkeypatch.setattr(Scripted, "forward", spied)
    monkeypatch.setattr(large, "PREFILL_RUNS", 1)
    sheet = Sheet()
    time_prefill(sheet, fused, unfused, 5)
    assert not sheet.result.keys() - {"prefill"}
    assert asked == {("flash", False), ("auto", False), ("math", False), ("auto", True)}
    assert {(row["attention"], row["layers"] == "fused") for row in sheet.result["prefill"].values()} == asked
    for row in sheet.result["prefill"].values():
        assert row["spread"]["samples"] == 1, "the first of two only warms up"
        assert row["tokens_per_second"] == pytest.approx(5 / (row["milliseconds"] / 1000))


@pytest.mark.slow
def test_measured_runs_of_speculation_meet_only_warmed_up_shapes(monkeypatch):
    """Every step shape has occurred, and so been captured, before. (With a draft that is always right and a window of
    one, the draft would never read a single token.)"""
    lab, shapes = scripted_pair(0.5), {"warm": set(), "measured": set()}
    now, forward = "warm", Scripted.forward
    decoded: list[int] = []

    def spied(model, token_ids, *rest):
        shapes[now].add((model.name, len(token_ids)))
        return forward(model, token_ids, *rest)

    def decode(config, tokens=60):
        run = lab.generate(prompt(20), config, SamplingParams(max_tokens=tokens, ignore_eos=True))
        decoded.append(config.num_speculative_tokens if config.speculative == "draft" else 0)
        return run

    monkeypatch.setattr(Scripted, "forward", spied)
    decode(EngineConfig())
    sheet = Sheet()
    drafted = {1: EngineConfig(speculative="draft", num_speculative_tokens=1)}
    large.warm_up(lab, lab.target.script, drafted, 80, decode)
    now = "measured"
    monkeypatch.setattr(large, "PASSES", 1)
    large.time_speculation(sheet, lab, lab.target.script, EngineConfig(), drafted, decode)
    assert shapes["measured"] <= shapes["warm"]
    assert decoded == [0, 1, 0, 1, 1, 1]
    row = sheet.result["speculation"][0]
    assert row["expected_tokens_per_round"] == tokens_per_round(0.5, 1)
    assert row["formula_as_accepted"] == pytest.approx(row["tokens_per_round"] / (1 + row["c"]))
    assert row["measured_over_formula_as_accepted"] == pytest.approx(row["speedup"] / row["formula_as_accepted"])


# -- the session -----------------------------------------------------------------------------


def test_figures_from_before_a_failure_are_kept_and_the_next_part_runs(tmp_path, monkeypatch):
    def broken(sheet, **options):
        assert json.loads(out.read_text("utf-8"))["machine"]["torch"], "whatever happens, it is known on what"
        with sheet.attempt("one row"):
            sheet.result["rows"] = {"another": {"median": 123.0}}
            raise ValueError("no such luck")
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setitem(PARTS, 3, PARTS[3]._replace(run=broken))
    monkeypatch.setitem(PARTS, 4, PARTS[4]._replace(run=lambda sheet, **options: sheet.result.update(rows=[CASE])))
    out, said = tmp_path / "gpu.json", []
    table = format_record(run_gpu([3, 4], out, said.append, device="cpu", small=True))
    three, four = json.loads(out.read_text("utf-8"))["parts"].values()
    assert three["failure"].startswith("RuntimeError: CUDA error")
    assert three["result"] == {
        "rows": {"another": {"median": 123.0}},
        "failures": {"one row": "ValueError: no such luck"},
    }
    assert (four["result"]["rows"], "failure" in four) == ([CASE], False)
    assert "  one row failed: ValueError: no such luck" in said
    assert [one for one in ("123", "illegal memory", " 77\n") if one not in table] == []


# -- scripted models -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_scripted_pair_follows_its_script_at_the_acceptance_asked_for():
    """Both models really compute, but acceptance is set by the script, whatever the weights give."""
    lab, rate, tokens = scripted_pair(0.7), 0.7, 400
    config = EngineConfig(speculative="draft", num_speculative_tokens=3)
    run = lab.generate(prompt(5), config, SamplingParams(max_tokens=tokens, ignore_eos=True))
    assert run.token_ids == lab.target.script[4 : 4 + tokens].tolist()
    # Tokens per round: 1 + a + a^2 + a^3 = 2.53, with a standard error of about 0.1 over these rounds.
    assert run.metrics.mean_acceptance_length == pytest.approx(sum(rate**i for i in range(4)), abs=0.4)
    assert all(step.draft_ms > 0 for step in steps(run, "verify"))
    script = random_script()
    for rate in (0.5, 0.7, 0.9):
        first, other = ((draft_script(script, rate, seed) == script)[:2000].view(-1, 100) for seed in (0, 1))
        assert (first.sum(1) == round(100 * rate)).all()
        assert not torch.equal(first, other)
        assert not torch.equal(first[0], first[1])


@interpreted
@pytest.mark.slow
def test_captured_steps_of_a_scripted_model_say_its_script(monkeypatch):
    """What is written into the script later, too."""
    pretend_to_capture(monkeypatch)
    script = random_script()
    target = scripted(script, end=1e-9)
    lab = new_engine(target, tokenizer(target.vocabulary), kernels="triton")
    for _ in range(2):
        run = lab.generate(prompt(5), EngineConfig(), SamplingParams(max_tokens=4, ignore_eos=True))
        assert run.token_ids == script[4:8].tolist()
        assert not [event for event in run.events if isinstance(event, FellBack)]
        script.copy_(script.flip(0))
    assert Again.made[0].replayed == 6


def test_output_lengths_are_geometric_and_follow_the_seed():
    lab = engine(scripted(random_script(), end=0.2))
    sampling, lengths = SamplingParams(max_tokens=200, temperature=1.0), []
    configs = EngineConfig(), EngineConfig(paged=True, kv_dtype="int8")
    for seed in range(20):
        one, other = (lab.generate(prompt(6), config, replace(sampling, seed=seed)) for config in configs)
        assert one.token_ids == other.token_ids
        assert one.token_ids[-1] == END
        lengths.append(len(one.token_ids))
    # Mean 5, standard deviation 4.5; the mean of 20 has one of about 1.
    assert sum(lengths) / len(lengths) == pytest.approx(5, abs=3.5)
    words, texts = tokenizer(TINY_TARGET.vocabulary), [prompt(17, first) for first in range(9)]
    assert {len(words(text)["input_ids"]) for text in texts} == {17}
    assert len(set(texts)) == 9
