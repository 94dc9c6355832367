"""The whole engine, with speculation, draws what the target alone would draw."""

from __future__ import annotations

import pytest
import torch

from lab import EngineConfig, SamplingParams
from lab.decode import outcome
from lab.decode.engine import Engine
from lab.decode.sampling import distribution
from tests.decode.test_acceptance import REJECT_BELOW, g_test, redraws_from_p
from tests.scripted_model import ScriptedModel
from tests.tiny_models import tokenizer

RUNS = 4000
WORDS = 6
SAMPLINGS = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.6},
    "top_k": {"temperature": 1.0, "top_k": 3},
    "top_p": {"temperature": 1.2, "top_p": 0.8},
}


def chain(seed: int) -> torch.Tensor:
    """Logits over the tokenizer's entries of which only the first few are ever likely."""
    table = torch.full((257, 257), -torch.inf)
    table[:, :WORDS] = torch.randn(257, WORDS, generator=torch.Generator().manual_seed(seed))
    return table


def p_value(settings: dict[str, float]) -> float:
    """Of the second and third generated tokens, the first a round of speculation gives, against their exact law."""
    target = chain(1)
    engine = Engine(ScriptedModel(target), tokenizer(), ScriptedModel(chain(2), "draft"))
    config = EngineConfig(paged=True, speculative="draft", num_speculative_tokens=2, num_blocks=4)
    counts = torch.zeros(WORDS, WORDS)
    for seed in range(RUNS):
        tokens = engine.generate("a", config, SamplingParams(max_tokens=4, seed=seed, **settings)).token_ids
        counts[tokens[1], tokens[2]] += 1
    p = distribution(target, SamplingParams(**settings))
    start = p[engine.tokenizer("a")["input_ids"][0], :WORDS]
    step = p[:WORDS, :WORDS]
    expected = (start @ step)[:, None] * step
    return g_test(counts.flatten(), expected.flatten())


@pytest.mark.parametrize("name", SAMPLINGS)
def test_engine_follows_the_target(name):
    assert p_value(SAMPLINGS[name]) > REJECT_BELOW


def test_it_would_be_noticed_if_not(monkeypatch):
    monkeypatch.setattr(outcome, "judge_sampled", redraws_from_p)
    assert p_value(SAMPLINGS["plain"]) < REJECT_BELOW
