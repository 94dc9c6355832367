"""The distributions around a verdict are those it was made from, and recording them changes nothing else."""

from __future__ import annotations

import pytest
import torch

from lab import EngineConfig, SamplingParams
from lab.backends.torch.sampler import distribution
from lab.load import new_engine
from lab.trace.events import Bonus, Committed, Distributions, Event, Proposed, Recovered, StepTimed, Verified
from tests.engine.test_distribution import WORDS, chain
from tests.scripted_model import ScriptedModel
from tests.tiny_models import tokenizer

TARGET, DRAFT = chain(1), chain(2)
DRAFTERS = ("draft", "ngram", "synthetic")
COUNT = 3


def run(
    drafter: str = "draft", *, logprobs: int = COUNT, top_tokens: int = 0, seed: int = 5, **settings: float
) -> list[Event]:
    engine = new_engine(ScriptedModel(TARGET), tokenizer(), ScriptedModel(DRAFT, "draft"))
    config = EngineConfig(paged=True, block_size=4, speculative=drafter, prompt_lookup_min=1)
    sampling = SamplingParams(
        max_tokens=40, seed=seed, logprobs=logprobs, top_tokens=top_tokens, **({"temperature": 1.0} | settings)
    )
    return list(engine.generate(tokenizer().decode([*range(WORDS), 0]), config, sampling).events)


def rounds(events: list[Event]) -> dict[int, list[Event]]:
    """The events of each step that verified something."""
    steps = {event.step: [] for event in events if isinstance(event, Verified)}
    for event in events:
        if isinstance(event, Proposed | Verified | Distributions | Recovered | Bonus) and event.step in steps:
            steps[event.step].append(event)
    return steps


def likeliest(weights: torch.Tensor) -> set[int]:
    return {i for i in weights.topk(COUNT).indices.tolist() if weights[i] > 0}


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("settings", [{}, {"top_k": 4}, {"temperature": 0.0}], ids=str)
def test_every_verified_position_has_the_distributions_it_was_verified_by(drafter: str, settings: dict) -> None:
    """Against the models' tables: both are Markov chains, so the last token gives p and q."""
    greedy, seen = settings.get("temperature") == 0, 0
    sampling = SamplingParams(**({"temperature": 1.0} | settings))
    p_of, q_of = distribution(TARGET, sampling), distribution(DRAFT, sampling)
    for seed in range(3):
        events = run(drafter, seed=seed, **settings)
        known = [*events[0].prompt_token_ids]
        commits = {event.step: event.token_ids for event in events if isinstance(event, Committed)}
        steps = rounds(events)
        for step in sorted(commits):
            some = steps.get(step, [])
            proposed = [event.token_id for event in some if isinstance(event, Proposed)]
            verdicts = [event for event in some if isinstance(event, Verified)]
            around = [event for event in some if isinstance(event, Distributions)]
            own = next((event for event in some if isinstance(event, Recovered)), None)
            assert [event.position for event in around] == [event.position for event in verdicts]
            for verdict, event in zip(verdicts, around, strict=True):
                last = proposed[verdict.position - 1] if verdict.position else known[-1]
                ids = torch.tensor(event.token_ids)
                p, q = p_of[last], q_of[last]
                if drafter == "ngram":
                    q = torch.eye(len(p))[verdict.token_id]
                assert event.token_ids[0] == verdict.token_id
                assert len(set(event.token_ids)) == len(event.token_ids)
                assert torch.tensor(event.p) == pytest.approx(p[ids], rel=1e-5)
                expected = {verdict.token_id} | likeliest(p)
                assert (event.q is None) == (drafter == "synthetic")
                if event.q is not None:
                    assert torch.tensor(event.q) == pytest.approx(q[ids], rel=1e-5)
                    expected |= likeliest(q)
                drawn = not greedy and drafter != "synthetic"
                assert event.overlap == (pytest.approx(torch.minimum(p, q).sum().item(), abs=1e-6) if drawn else None)
                replaced = not verdict.accepted and drawn
                assert (event.residual is not None) == replaced
                if replaced:
                    left = (p - q).clamp_min(0) / (p - q).clamp_min(0).sum()
                    assert torch.tensor(event.residual) == pytest.approx(left[ids], abs=1e-6)
                    expected |= {own.token_id} | likeliest(left)
                    assert event.residual[event.token_ids.index(own.token_id)] > 0
                    seen += 1
                assert set(event.token_ids) == expected
                assert list(event.texts) == [tokenizer().decode([i]) for i in event.token_ids]
            known += commits[step]
    assert seen > 5 or greedy or drafter == "synthetic"


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_recording_changes_nothing_else(drafter: str) -> None:
    def rest(events: list[Event]) -> list[tuple]:
        return [
            tuple(getattr(event, name, None) for name in ("kind", "step", "position", "token_id", "p", "q", "u"))
            for event in events
            if not isinstance(event, Distributions | StepTimed)
        ]

    recorded, plain = run(drafter), run(drafter, logprobs=0)
    assert not any(isinstance(event, Distributions) for event in plain)
    assert rest(recorded) == rest(plain)


def test_a_broken_draft_leaves_no_nan_in_the_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    table = DRAFT.clone()
    table[2] = torch.nan
    for temperature in (0.0, 1.0):
        engine = new_engine(ScriptedModel(TARGET), tokenizer(), ScriptedModel(table, "draft"))
        sampling = SamplingParams(max_tokens=40, temperature=temperature, seed=1, logprobs=COUNT)
        events = engine.generate("".join(tokenizer().decode([0, 1])), EngineConfig(speculative="draft"), sampling)
        around = [event for event in events.events if isinstance(event, Distributions)]
        assert all(value == value for event in around for value in (*event.p, *event.q, *(event.residual or ())))


@pytest.mark.parametrize("drafter", [*DRAFTERS, "off"])
@pytest.mark.parametrize("settings", [{}, {"top_k": 2}, {"temperature": 0.0}], ids=str)
def test_each_position_has_the_targets_likeliest_tokens_and_its_entropy(drafter: str, settings: dict) -> None:
    """Against the model's table. Finding them changes no token."""
    p_of = distribution(TARGET, SamplingParams(**({"temperature": 1.0} | settings)))
    events = run(drafter, logprobs=0, top_tokens=COUNT, **settings)
    commits = [event for event in events if isinstance(event, Committed)]
    known = [*events[0].prompt_token_ids]
    for commit in commits:
        for token, ids, texts, p, entropy in zip(
            commit.token_ids, commit.top_token_ids, commit.top_texts, commit.top_p, commit.entropies, strict=True
        ):
            weights = p_of[known[-1]]
            assert set(ids) == likeliest(weights)
            assert list(p) == sorted(p, reverse=True) == pytest.approx(weights[list(ids)].tolist(), rel=1e-4)
            assert texts == tuple(tokenizer().decode([id]) for id in ids)
            assert entropy == pytest.approx(torch.special.entr(weights).sum().item(), rel=1e-4)
            known.append(token)
    plain = [event for event in run(drafter, logprobs=0, **settings) if isinstance(event, Committed)]
    assert [event.token_ids for event in plain] == [event.token_ids for event in commits]
    assert not any(event.top_token_ids for event in plain)
