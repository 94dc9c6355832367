"""The GPU bench, tried without one: tiny shapes, kernels in Triton's interpreter, every part and the recording."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

from lab import EngineConfig, Run, SamplingParams
from lab.bench.gpu import session
from lab.bench.gpu.large import steps
from lab.bench.gpu.models import END, TINY_DRAFT, TINY_TARGET, Scripted, engine, guess, prompt, random_script, tokenizer
from lab.bench.gpu.session import format_gpu, guarded, run_gpu
from lab.decode.engine import Engine

CPU = torch.device("cpu")
OPTIONS = {"dtype": torch.float32, "device": CPU}


def scripted_pair(rate: float) -> Engine:
    script = random_script(TINY_TARGET, CPU)
    target = Scripted(TINY_TARGET, script, "target", **OPTIONS)
    draft = Scripted(TINY_DRAFT, guess(script, rate), "draft", **OPTIONS)
    return engine(target, draft)


def test_every_part_measures_and_is_told(tmp_path):
    lines: list[str] = []
    out, folder = tmp_path / "new" / "gpu.json", tmp_path / "runs"
    table = run_gpu([1, 2, 3, 4], out, lines.append, device="cpu", small=True, folder=folder)
    result = json.loads(out.read_text("utf-8"))
    assert "failed" not in "".join(lines)
    parts = {number: entry["result"] for number, entry in result["parts"].items()}
    assert all("failure" not in entry for entry in result["parts"].values())
    assert result["machine"]["torch"] == torch.__version__

    assert {"cache", "transformers generate", "transformers assisted generation"} <= set(parts["1"]["rows"])
    assert ("cache, no graphs" in parts["1"]["rows"]) == parts["1"]["cuda_graphs"]
    assert "transformers generate, static cache" in parts["1"]["static"]
    for row in parts["2"]["decode"].values():
        assert 0 < row["of_copy"] == pytest.approx(row["gb_per_second"] / parts["2"]["copy_gb_per_second"])
    assert {(row["acceptance"], row["gamma"]) for row in parts["2"]["speculation"]} == {
        (rate, gamma) for rate in (0.5, 0.7, 0.9) for gamma in (1, 3)
    }
    kinds = {(case["format"], case["blocks"]) for case in parts["3"]["cases"]}
    assert len(kinds) == 7  # three formats, contiguous and paged; and SDPA
    rows = parts["4"]["rows"]
    assert rows["contiguous"]["most_sequences"] < rows["paged"]["most_sequences"]
    assert rows["paged"]["blocks"] < rows["paged INT8"]["blocks"]
    assert len({row["output_tokens"] for row in rows.values()}) == 1  # the same work

    for words in ("tokens/s  cache", "of a copy", "acceptance 0.7", "64 x 2", "paged INT8: at most"):
        assert words in table
    assert sorted(path.name for path in folder.iterdir()) == sorted(result["recorded"]["files"])
    assert all(Run.load(path).reason for path in folder.iterdir())


def test_a_part_that_fails_or_takes_too_long_does_not_end_the_others(tmp_path, monkeypatch):
    def broken(result, report, **options):
        result["rows"] = {}
        raise ValueError("no such luck")

    def slow(result, report, **options):
        result["cases"] = []
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(session, "run_pair", broken)
    monkeypatch.setattr(session, "run_attention", slow)
    monkeypatch.setattr(session, "run_capacity", lambda result, report, **options: result.update(rows={}))
    monkeypatch.setitem(session.SECONDS, 3, 0.2)
    out = tmp_path / "gpu.json"
    table = run_gpu([1, 3, 4], out, lambda line: None, device="cpu", small=True, folder=None)
    parts = json.loads(out.read_text("utf-8"))["parts"]
    assert parts["1"]["failure"] == "ValueError: no such luck"
    assert "OutOfTimeError: stopped after 0.2 s" in parts["3"]["failure"]
    assert "failure" not in parts["4"]
    assert "no such luck" in table
    assert format_gpu(json.loads(out.read_text("utf-8"))) == table


def test_the_limit_of_time_passes_the_engine_by():
    """It is not taken for a step that failed, which the engine would get round."""
    lab = scripted_pair(0.5)
    entry: dict = {}
    with guarded(entry, 0.3, lambda line: None):
        lab.generate(prompt(4), EngineConfig(), SamplingParams(max_tokens=2000, ignore_eos=True))
    assert entry["failure"].startswith("OutOfTimeError")
    assert entry["seconds"] < 5


def test_a_scripted_model_says_its_script_and_its_draft_guesses_it_as_often_as_asked():
    """While both compute: acceptance is what was drawn, whatever the weights would say."""
    lab, rate, tokens = scripted_pair(0.7), 0.7, 1000
    config = EngineConfig(speculative="draft", num_speculative_tokens=3)
    run = lab.generate(prompt(5), config, SamplingParams(max_tokens=tokens, ignore_eos=True))
    assert run.token_ids == lab.target.script[4 : 4 + tokens].tolist()
    # Tokens a round: 1 + a + a^2 + a^3 = 2.53, with a standard error of about 0.06 over these rounds.
    assert run.metrics.mean_acceptance_length == pytest.approx(sum(rate**i for i in range(4)), abs=0.3)
    assert all(step.draft_ms > 0 for step in steps(run, "verify"))
    lab.draft.script.copy_(lab.target.script)
    always = lab.generate(prompt(5), config, SamplingParams(max_tokens=41, ignore_eos=True))
    assert always.metrics.draft_acceptance_rate == 1


def test_ends_are_geometric_and_follow_the_seed():
    script = random_script(TINY_TARGET, CPU)
    target = Scripted(TINY_TARGET, script, "target", **OPTIONS, end=0.2)
    lab = engine(target)
    sampling = SamplingParams(max_tokens=200, temperature=1.0, seed=3)
    lengths = []
    for seed in range(40):
        runs = [
            lab.generate(prompt(6), config, replace(sampling, seed=seed))
            for config in (EngineConfig(), EngineConfig(paged=True, kv_dtype="int8"))
        ]
        assert runs[0].token_ids == runs[1].token_ids
        assert runs[0].token_ids[-1] == END
        lengths.append(len(runs[0].token_ids))
    # Mean 5, standard deviation 4.5; of the mean of 40 about 0.7.
    assert sum(lengths) / len(lengths) == pytest.approx(5, abs=2.5)


def test_a_prompt_has_as_many_tokens_as_asked():
    words = tokenizer(TINY_TARGET.vocabulary)
    texts = [prompt(17, first) for first in range(9)]
    assert {len(words(text)["input_ids"]) for text in texts} == {17}
    assert len(set(texts)) == 9
