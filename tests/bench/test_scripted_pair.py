"""Models that output a script: what they say, how often a draft is right, and how long they go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

from lab import EngineConfig, SamplingParams
from lab.bench.gpu.random_models import (
    END,
    TINY_TARGET,
    Scripted,
    draft_script,
    engine,
    prompt,
    random_script,
    tokenizer,
)
from lab.load import new_engine
from lab.measure.measuring import steps
from lab.trace.events import FellBack
from tests.captured import Again, pretend_to_capture
from tests.scripted_pair import CPU, OPTIONS, scripted_pair

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles here, and for no CPU")


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
    lab.draft.script.copy_(lab.target.script)
    always = lab.generate(prompt(5), config, SamplingParams(max_tokens=41, ignore_eos=True))
    assert always.metrics.draft_acceptance_rate == 1


@interpreted
@pytest.mark.slow
def test_captured_steps_of_a_scripted_model_say_its_script(monkeypatch):
    """What is written into the script later, too."""
    pretend_to_capture(monkeypatch)
    script = random_script(TINY_TARGET, CPU)
    target = Scripted(TINY_TARGET, script, "target", **OPTIONS, end=1e-9)
    lab = new_engine(target, tokenizer(target.vocabulary), kernels="triton")
    for _ in range(2):
        run = lab.generate(prompt(5), EngineConfig(), SamplingParams(max_tokens=4, ignore_eos=True))
        assert run.token_ids == script[4:8].tolist()
        assert not [event for event in run.events if isinstance(event, FellBack)]
        script.copy_(script.flip(0))
    assert Again.made[0].replayed == 6


def test_in_every_hundred_positions_a_draft_is_right_as_often_as_asked_for():
    script = random_script(TINY_TARGET, CPU)
    for rate in (0.5, 0.7, 0.9):
        first, other = ((draft_script(script, rate, seed) == script)[:2000].view(-1, 100) for seed in (0, 1))
        assert (first.sum(1) == round(100 * rate)).all()
        assert not torch.equal(first, other)
        assert not torch.equal(first[0], first[1])


def test_output_lengths_are_geometric_and_follow_the_seed():
    script = random_script(TINY_TARGET, CPU)
    target = Scripted(TINY_TARGET, script, "target", **OPTIONS, end=0.2)
    lab = engine(target)
    sampling = SamplingParams(max_tokens=200, temperature=1.0, seed=3)
    lengths = []
    for seed in range(20):
        runs = [
            lab.generate(prompt(6), config, replace(sampling, seed=seed))
            for config in (EngineConfig(), EngineConfig(paged=True, kv_dtype="int8"))
        ]
        assert runs[0].token_ids == runs[1].token_ids
        assert runs[0].token_ids[-1] == END
        lengths.append(len(runs[0].token_ids))
    # Mean 5, standard deviation 4.5; the mean of 20 has one of about 1.
    assert sum(lengths) / len(lengths) == pytest.approx(5, abs=3.5)


def test_a_prompt_has_as_many_tokens_as_asked_for():
    words = tokenizer(TINY_TARGET.vocabulary)
    texts = [prompt(17, first) for first in range(9)]
    assert {len(words(text)["input_ids"]) for text in texts} == {17}
    assert len(set(texts)) == 9
