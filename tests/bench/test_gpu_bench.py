"""The GPU bench, tested without a GPU: tiny shapes, kernels in Triton's interpreter, every part and the recording; and
its models, which output a script."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

from lab import EngineConfig, SamplingParams
from lab.backends.gpu import fused_product as product
from lab.backends.gpu import paged_attention as attend_kernel
from lab.bench.gpu import kernels_alone
from lab.bench.gpu.large import PROMPT_TOKENS
from lab.bench.gpu.random_models import TINY_TARGET, Scripted, draft_script, prompt, tokenizer
from lab.bench.gpu.random_models import random_script as random_tokens
from lab.bench.gpu.session import PARTS, run_gpu
from lab.bench.gpu.sheet import Sheet
from lab.bench.output import format_record
from lab.kv_cache.storage import bytes_per_token
from lab.load import new_engine
from lab.measure.measuring import steps
from lab.trace.events import FellBack
from tests.captured import Again, pretend_to_capture
from tests.scripted_pair import CPU, OPTIONS, scripted_pair

CASE = {"context": 64, "batch": 1, "format": "auto", "blocks": "sdpa", "microseconds": 1.0, "gb_per_second": 77.0}
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
    assert [one for one in ("123", "illegal memory", "  77") if one not in table] == []


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
