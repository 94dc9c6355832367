"""The bench of recording distributions compares each round with the same round unrecorded."""

from __future__ import annotations

import json

import pytest

from lab.bench import logprobs_cost as bench
from lab.trace.events import Distributions
from tests import tiny_models


def test_every_round_is_repeated_with_recording_as_the_only_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "PROMPTS", bench.PROMPTS[:2])
    asked: list[tuple[int, tuple[int, ...]]] = []
    real = bench.finish

    def watched(engine, jobs, config):
        runs, seconds = real(engine, jobs, config)
        recorded = sum(isinstance(event, Distributions) for event in runs[0].events)
        assert bool(recorded) == bool(jobs[0].sampling.logprobs)
        asked.append((jobs[0].sampling.logprobs, tuple(runs[0].token_ids)))
        return runs, seconds

    monkeypatch.setattr(bench, "finish", watched)
    lines: list[str] = []
    result = bench.run_logprobs(tiny_models.engine("llama", "good"), 3, 12, 2, lines.append)
    result = json.loads(json.dumps(result))
    assert lines
    assert {count for count, _ in asked} == {0, 3}
    for count in (0, 3):
        assert {tokens for own, tokens in asked if own == count} == {tokens for _, tokens in asked}
    assert result["steps"] > 4
    assert result["plain_ms"] > 0
    assert result["recorded_ms"] > 0
    added = result["added_ms"]
    assert added["lower"] <= added["median"] <= added["upper"]
    assert f"added {added['median']:.3f} ms" in bench.format_logprobs(result)
