"""The bench of the adaptive window compares settings on the same work."""

from __future__ import annotations

import json
from collections import Counter

from lab import Engine, EngineConfig
from lab.bench import window_sweep as bench
from tests import tiny_models


def test_every_setting_is_timed_on_every_kind_of_prompt_by_engines_that_fit_together(monkeypatch):
    """On a GPU, an engine's cache may otherwise take most of what the engines before it have left."""
    made = []

    class Counted(Engine):
        def clone(self, **how) -> Engine:
            made.append(super().clone(**how))
            return made[-1]

    monkeypatch.setattr(bench, "GAMMAS", (1, 3))
    lines: list[str] = []
    good, bad = tiny_models.engine("llama", "good"), tiny_models.engine("llama", "bad")
    good.__class__ = bad.__class__ = Counted
    result = json.loads(json.dumps(bench.run_window(good, bad, max_tokens=6, repeats=1, report=lines.append)))
    assert lines
    assert list(result["rows"]) == ["off", "gamma 1", "gamma 3", "adaptive"]
    assert [kind["draft"] for kind in result["mix"].values()] == ["good", "good", "bad"]
    for row in result["rows"].values():
        assert 0 < row["lower"] <= row["mix"] <= row["upper"]
        assert min(row[kind] for kind in result["mix"]) > 0
    assert set(result["ratios"]) == {"mix", "easy", "middling", "hard"}
    text = bench.format_window(result)
    for name in (*result["rows"], *result["ratios"]):
        assert name in text
    assert len(made) == 4 * 3
    whole = good.default_num_blocks(EngineConfig())
    assert max(sum(engine.occupancy()) for engine in made) < whole / 8


def test_a_rate_is_all_tokens_over_all_time_of_a_repeat(monkeypatch):
    calls = Counter()

    def timed(engine, job, config) -> tuple[int, float]:
        """Ten tokens, in as many seconds as the setting has guesses and one more, doubled for code; repeat after repeat
        takes longer."""
        guesses = config.num_speculative_tokens if config.speculative == "draft" else 0
        what = engine.draft.name, job.prompt, job.sampling.temperature, job.sampling.seed
        assert (job.sampling.max_tokens, job.sampling.ignore_eos) == (6, True)
        calls[what, config] += 1
        again = calls[what, config] - 1 or 100  # the first is not counted
        return 10, again * (guesses + 1) * (2 if job.prompt in bench.PROGRAMS else 1)

    monkeypatch.setattr(bench, "GAMMAS", (1, 3))
    monkeypatch.setattr(bench, "timed", timed)
    good, bad = (tiny_models.engine("llama", draft) for draft in ("good", "bad"))
    rows = bench.run_window(good, bad, max_tokens=6, repeats=3, report=lambda line: None)["rows"]
    for name, seconds in {"off": 1, "gamma 1": 2, "gamma 3": 4, "adaptive": 4}.items():
        rates = {kind: rate * seconds for kind, rate in rows[name].items()}
        assert rates == {"mix": 3.75, "lower": 3.125, "upper": 5.625, "easy": 5, "middling": 2.5, "hard": 5}
    assert {what for what, _ in calls} == {
        (draft, prompt, temperature, seed)
        for draft, prompts, temperature in (
            ("good", bench.STORIES, 0.0),
            ("good", bench.PROGRAMS, 1.5),
            ("bad", bench.STORIES, 0.0),
        )
        for seed, prompt in enumerate(prompts)
    }


def test_the_adaptive_window_is_compared_with_the_worst_and_best_fixed_one():
    rows = {"off": {"mix": 100.0}, "gamma 1": {"mix": 80.0}, "gamma 3": {"mix": 120.0}, "adaptive": {"mix": 150.0}}
    found = bench.against_fixed(rows, "mix")
    assert found == {"worst": "gamma 1", "to_worst": 1.875, "best": "gamma 3", "to_best": 1.25}


def test_only_the_adaptive_setting_adapts():
    configs = bench.window_configs(context_length=100)
    assert [name for name, config in configs.items() if config.adaptive_window] == ["adaptive"]
    assert configs["adaptive"].num_speculative_tokens == max(bench.GAMMAS)
    assert configs["off"].speculative == "off"
