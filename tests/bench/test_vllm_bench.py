"""The comparison with vLLM, tested with a stand-in that answers like the engine, or nearly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from lab.bench.vllm_bench import accepted_by_round, format_vllm, run_vllm
from lab.config import EngineConfig, SamplingParams
from lab.errors import LabError
from lab.measure.prompts import PROMPTS
from lab.vllm.completion import CompletionEnd, ReportedRounds
from tests import tiny_models

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


@pytest.fixture(scope="module")
def engine():
    return tiny_models.engine("llama", "good", shape={"num_hidden_layers": 3})


@pytest.fixture
def standin(engine) -> Standin:
    """It drafts whole windows to the end, as vLLM does: its last round has more proposals than the engine's."""
    answers = {}
    for prompt in PROMPTS:
        config = EngineConfig(speculative="draft", num_speculative_tokens=GAMMA)
        run = engine.generate(prompt, config, SamplingParams(max_tokens=40))
        accepted = (*accepted_by_round(run, GAMMA), 1)
        answers[prompt] = run.text, ReportedRounds((GAMMA,) * len(accepted), accepted)
    return Standin(answers)


def test_equal_texts_and_rounds_are_found_equal(engine, standin):
    result = run_vllm(engine, standin, 40, lambda line: None)
    assert result["gamma"] == GAMMA
    assert [row["prompt"] for row in result["rows"]] == list(PROMPTS)
    for row in result["rows"]:
        assert row["same_text"]
        assert row["alike"] == len(row["ours"]) > 5
        assert 0 < sum(row["ours"]) < GAMMA * len(row["ours"])
    assert format_vllm(result).count("yes") == len(PROMPTS)


def test_different_texts_and_rounds_are_reported(engine, standin):
    text, rounds = standin.answers[PROMPTS[0]]
    accepted = list(rounds.accepted)
    accepted[4] = (accepted[4] + 1) % (GAMMA + 1)
    standin.answers[PROMPTS[0]] = text + "!", replace(rounds, accepted=tuple(accepted))
    first, *others = run_vllm(engine, standin, 40, lambda line: None)["rows"]
    assert (first["same_text"], first["alike"]) == (False, 4)
    assert all(row["same_text"] for row in others)


@pytest.mark.parametrize("reported", [None, ReportedRounds((), ())])
def test_a_server_without_rounds_is_told_how_to_start(engine, standin, reported):
    standin.answers[PROMPTS[0]] = "a text", reported
    with pytest.raises(LabError, match="per-request-spec-decode-metrics detailed"):
        run_vllm(engine, standin, 40, lambda line: None)


def test_a_server_without_a_model_is_refused(engine):
    with pytest.raises(LabError, match="8000 serves no model"):
        run_vllm(engine, Standin({}, serves=()), 40, lambda line: None)
