"""The ladder bench measures what it reports, on tiny models."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from lab import EngineConfig, LabError, SamplingParams
from lab.bench import ladder
from lab.bench.ladder import format_rows, ladder_configs, run_ladder, time_rows
from lab.trace.events import Committed, Finished, RunStarted, StepTimed
from lab.trace.recorder import Recorder
from tests import tiny_models


@pytest.fixture(scope="module")
def lab():
    return tiny_models.engine("llama", "good")


@pytest.mark.slow
def test_every_rung_and_both_baselines_are_timed(lab, monkeypatch):
    monkeypatch.setattr(ladder, "PROMPTS", ("The king", "A fox"))
    monkeypatch.setattr(ladder, "GAMMAS", (2, 3))
    monkeypatch.setattr(ladder, "held_out_prompts", lambda: ["Long ago", "In the forest"])
    lines: list[str] = []
    result = json.loads(json.dumps(run_ladder(lab, max_tokens=8, repeats=2, report=lines.append)))
    names = [row["name"] for row in result["ladder"]]
    assert names == [
        *ladder_configs(result["best_gamma"]),
        "cache, nothing recorded",
        "transformers generate",
        "transformers assisted generation",
    ]
    assert result["best_gamma"] in (2, 3)
    assert result["unseen_texts"] == 2
    greedy, _, drawn, guessed = result["unseen"]
    assert greedy["name"] == "greedy, cache"
    assert guessed["name"] == "temperature 0.8, speculation (gamma 4)"
    ratio = result["ratios"]["speculation / cache, unseen texts, temperature 0.8"]
    assert ratio == guessed["median"] / drawn["median"]
    for row in result["ladder"] + result["gammas"] + result["unseen"]:
        assert row["samples"] == 4
        assert 0 < row["lower"] <= row["median"] <= row["upper"]
    medians = {row["name"]: row["median"] for row in result["ladder"]}
    ratio = result["ratios"]["cache / transformers generate"]
    assert ratio == pytest.approx(medians["cache"] / medians["transformers generate"])
    assert "transformers generate" in format_rows(result["ladder"], "cache")
    assert lines


def test_a_slow_models_speeds_are_told_apart():
    """A large model on a CPU takes longer than a second for a token."""
    rows = [{"name": "cache", "median": 0.4249, "lower": 0.3619, "upper": 0.4871}]
    assert format_rows(rows, "cache").splitlines()[1].split() == ["cache", "0.425", "0.362", "to", "0.487", "1.00"]


def test_transformers_decodes_as_many_tokens_in_the_bench(lab):
    """Otherwise the ladder would compare different work."""
    stock = {"transformers generate": ladder.stock_generate(lab, 9)}
    (row,) = time_rows(lab, stock, ("The king", "A fox"), 1, lambda line: None)
    assert row.samples == 2
    assert ladder.timed(lab, "transformers generate", ladder.stock_generate(lab, 9), "The king")[0] == 9
    assert ladder.timed(lab, "transformers assisted", ladder.stock_generate(lab, 9, gamma=3), "The king")[0] == 9


@pytest.mark.parametrize("captured", [False, True])
def test_where_steps_are_captured_every_prompt_warms_up(captured):
    """How the end of its output cuts the last window short decides which graphs it needs."""
    asked = []
    lab = SimpleNamespace(device="cpu", cuda_graphs=captured)
    (row,) = time_rows(lab, {"cache": lambda prompt: asked.append(prompt) or 1}, ("A", "B"), 1, lambda line: None)
    assert row.samples == 2
    assert asked == [*("AB" if captured else "A"), "A", "B"]


@pytest.mark.parametrize("recorded", [True, False])
def test_a_run_that_failed_or_fell_back_is_not_timed(monkeypatch, recorded):
    lab = tiny_models.engine("llama", "good")

    def timed(config: EngineConfig) -> int:
        generate = ladder.lab_generate(lab, config, SamplingParams(max_tokens=5, ignore_eos=True))
        return (generate if recorded else ladder._unrecorded(generate))("The king")

    assert timed(EngineConfig(speculative="draft")) == 5
    monkeypatch.setattr(lab.draft, "forward", None)
    with pytest.raises(LabError, match="went on without its drafter"):
        timed(EngineConfig(speculative="draft"))
    monkeypatch.setattr("lab.engine.core.forward", None)
    with pytest.raises(LabError, match="failed"):
        timed(EngineConfig())


def test_the_unrecorded_row_emits_no_step_events(monkeypatch):
    seen = []
    emit = Recorder.emit
    monkeypatch.setattr(Recorder, "emit", lambda self, kind, **fields: seen.append(kind) or emit(self, kind, **fields))
    lab = tiny_models.engine("llama")
    sampling = SamplingParams(max_tokens=5, ignore_eos=True)
    generate = ladder._unrecorded(lambda prompt: len(lab.generate(prompt, EngineConfig(), sampling).token_ids))
    assert generate("The king") == 5
    assert set(seen) == {RunStarted, Committed, Finished}
    lab.generate("The king", EngineConfig(), sampling)
    assert StepTimed in seen
