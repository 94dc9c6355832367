"""The whole engine, with speculation, samples from the distribution of the target alone."""

from __future__ import annotations

import pytest
import torch

from lab import EngineConfig, SamplingParams
from lab.backends.torch import torch_backend
from lab.backends.torch.batched_verification import verify_rounds
from lab.backends.torch.rejection_sampler import METHODS
from lab.backends.torch.sampler import distribution
from lab.load import new_engine
from lab.measure.interval import g_test
from lab.trace.events import Proposed
from tests.engine import test_recurrent
from tests.engine.test_acceptance import REJECT_BELOW, redraws_from_p
from tests.engine.test_windows import windowed
from tests.scripted_model import ScriptedBlockHead, ScriptedHead, ScriptedMarkovHead, ScriptedModel
from tests.tiny_models import tokenizer

pytestmark = pytest.mark.slow

RUNS = 1000
"""Enough for a p-value of 1e-14 if the residual is replaced by p: see ``test_a_wrong_residual_would_be_noticed``."""
WORDS = 6
SAMPLINGS = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.6},
    "top_k": {"temperature": 1.0, "top_k": 3},
    "top_p": {"temperature": 1.2, "top_p": 0.8},
}


def chain(seed: int) -> torch.Tensor:
    """Logits over the tokenizer's entries, of which only the first few have any probability."""
    table = torch.full((257, 257), -torch.inf)
    table[:, :WORDS] = torch.randn(257, WORDS, generator=torch.Generator().manual_seed(seed))
    return table


def p_value(settings: dict[str, float], drafter: str = "draft", **more: str) -> float:
    """Test the second and third generated tokens, the first that speculation gives, against their exact distribution.

    All runs are submitted at once, each with a seed of its own, and run in batches of hundreds.
    """
    target = chain(1)
    model = ScriptedModel(target)
    heads = {"eagle3": ScriptedHead, "dflash": ScriptedBlockHead, "dspark": ScriptedMarkovHead}
    model.heads |= {kind: head(chain(2)[:, :WORDS], len(target)) for kind, head in heads.items()}
    engine = new_engine(model, tokenizer(), ScriptedModel(chain(2), "draft"), max_num_seqs=256)
    config = EngineConfig(
        paged=True,
        block_size=4,
        num_blocks=1024,
        speculative=drafter,
        num_speculative_tokens=2,
        prompt_lookup_min=1,
        **more,
    )
    prompt = tokenizer().decode([*range(WORDS), 0])  # every word has a successor: something to look up
    requests = [
        engine.submit(prompt, config, SamplingParams(max_tokens=4, seed=seed, **settings)) for seed in range(RUNS)
    ]
    counts, proposed = torch.zeros(WORDS, WORDS), 0
    for request in requests:
        run = request.result()
        counts[run.token_ids[1], run.token_ids[2]] += 1
        proposed += any(isinstance(event, Proposed) for event in run.events)
    assert proposed > RUNS / 2
    p = distribution(target, SamplingParams(**settings))
    start = p[engine.tokenizer(prompt)["input_ids"][-1], :WORDS]
    step = p[:WORDS, :WORDS]
    expected = (start @ step)[:, None] * step
    return g_test(counts.flatten(), expected.flatten())


@pytest.mark.parametrize("name", SAMPLINGS)
def test_engine_follows_the_target(name):
    assert p_value(SAMPLINGS[name]) > REJECT_BELOW


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["eagle3", "dflash", "dspark", "ngram", "synthetic"])
def test_engine_follows_the_target_whatever_the_drafter(drafter):
    assert p_value(SAMPLINGS["plain"], drafter) > REJECT_BELOW


@pytest.mark.parametrize("drafter", ["draft", "eagle3", "dflash", "dspark", "ngram"])
def test_a_wrong_residual_would_be_noticed(monkeypatch, drafter):
    monkeypatch.setitem(METHODS, "standard", redraws_from_p)
    assert p_value(SAMPLINGS["plain"], drafter) < REJECT_BELOW


VERIFIERS = {
    "block": {"rejection_sample_method": "block"},
    "greedy draft": {"draft_sample_method": "greedy"},
    "both": {"rejection_sample_method": "block", "draft_sample_method": "greedy"},
}


@pytest.mark.parametrize("name", VERIFIERS)
def test_engine_follows_the_target_by_every_lossless_rule(name):
    assert p_value(SAMPLINGS["plain"], **VERIFIERS[name]) > REJECT_BELOW


def test_engine_does_not_follow_the_target_by_typical_acceptance():
    assert p_value(SAMPLINGS["plain"], rejection_sample_method="typical") < REJECT_BELOW


@pytest.mark.parametrize(("method", "used_again"), [("standard", True), ("block", False)])
def test_rounds_of_block_verification_share_no_random_numbers(monkeypatch, method, used_again):
    """There the numbers of rejected draft tokens decide, too: the next round must not use them again."""
    used = []

    def spy(logits, rounds, sample):
        used.extend(row for round in rounds for row in round.uniforms[:, 0].tolist())
        return verify_rounds(logits, rounds, sample)

    monkeypatch.setattr(torch_backend, "verify_rounds", spy)
    engine = new_engine(ScriptedModel(chain(1)), tokenizer(), ScriptedModel(chain(2), "draft"))
    config = EngineConfig(speculative="draft", rejection_sample_method=method)
    engine.generate(tokenizer().decode([0, 1]), config, SamplingParams(max_tokens=40, temperature=1.0, seed=1))
    assert len(used) > 40
    assert (len(set(used)) < len(used)) == used_again


def test_engine_follows_a_target_whose_window_is_shorter_than_the_text():
    engine = new_engine(windowed("mistral"), tokenizer(), max_num_seqs=200)
    assert test_recurrent.p_value(engine) > REJECT_BELOW
