"""Exact rules and wrong ones that are noticed, rollback, altered heads, and promised speed-ups."""

from __future__ import annotations

import math
import tempfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import EngineConfig, LabError, SamplingParams
from lab.claims import CLAIMS
from lab.claims.acceptance_rules import Context, Draws, by_target, with_absolute, with_residual, with_target
from lab.claims.exactness import NOTICED, control, p_value, speculate
from lab.claims.quality import multi_head, pooled
from lab.claims.speculation import GAMMA
from lab.claims.trial import Trial
from lab.measure.theory import GAMMAS, best_speedup, needed_acceptance
from tests import tiny_models

DRAFT_TOKENS = 4_000


def random_places(seed: int, words: int = 30, count: int = 4) -> list[Context]:
    generator = torch.Generator().manual_seed(seed)
    p, q = (torch.randn(count, words, generator=generator, dtype=torch.float64).mul(1.5).softmax(-1) for _ in "pq")
    return [Context(*pair) for pair in zip(p, q, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_exact_rules_pass_wrong_ones_are_noticed_and_as_many_are_accepted_as_theory_says(seed):
    places = random_places(seed)
    for rule, theory in ((by_target, lambda p, q: p * q), (with_residual, torch.minimum)):
        value, share = p_value(rule, places, DRAFT_TOKENS)
        assert value > NOTICED
        expected = sum(theory(*place).sum().item() for place in places) / len(places)
        assert share == pytest.approx(expected, abs=5 * (0.25 / (DRAFT_TOKENS * len(places))) ** 0.5)
    for rule in (with_target, with_absolute):
        assert p_value(rule, places, DRAFT_TOKENS)[0] < NOTICED
    assert control(places, DRAFT_TOKENS) < NOTICED


@pytest.mark.parametrize(
    ("rule", "shares"),
    [
        (with_residual, (0.6, 0.0, 0.4)),
        (with_target, (0.5, 0.3, 0.2)),
        (with_absolute, (0.3, 0.5, 0.2)),
        (by_target, (5 / 7, 0.0, 2 / 7)),
    ],
)
def test_each_rule_redraws_from_its_own_weights(rule, shares):
    p, q = (torch.tensor(weights, dtype=torch.float64) for weights in ((0.5, 0.3, 0.2), (0.2, 0.8, 0.0)))
    u_next = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    rejected = Draws(torch.ones(1000, dtype=torch.long), torch.full((1000,), 0.99, dtype=torch.float64), u_next)
    accepted, token = rule(Context(p, q), rejected)
    assert not accepted.any()
    assert token.bincount(minlength=3).tolist() == pytest.approx([1000 * share for share in shares], abs=1)


def test_a_test_without_power_is_no_evidence():
    """If the draft's distribution is the target's, nothing is rejected, so a wrong redraw cannot be noticed."""
    same = [Context(p, p) for p, _ in random_places(0)]
    with pytest.raises(LabError, match="does not notice a wrong rule"):
        control(same, DRAFT_TOKENS)


@given(st.integers(2, 12), st.integers(0, 10_000))
def test_a_rejected_proposal_is_not_drawn_again(words, seed):
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, words, generator=generator, dtype=torch.float64)
    context = Context(p / p.sum(), q / q.sum())
    draft = torch.randint(words, (200,), generator=generator)
    u_next = torch.rand(200, generator=generator, dtype=torch.float64)
    accepted, token = by_target(context, Draws(draft, torch.ones(200, dtype=torch.float64), u_next))
    assert not accepted.any()
    assert (token != draft).all()


# -- rollback --------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["good", "bad", "identical"])
def test_speculating_with_rollback_equals_plain_decoding_and_without_it_only_if_nothing_is_rejected(draft):
    engine = tiny_models.engine("llama", draft)
    run = engine.generate("The king", EngineConfig(), SamplingParams(max_tokens=24, ignore_eos=True))
    prompt, right = list(run.prompt_token_ids), list(run.token_ids)
    rolled, stale = (speculate(engine, prompt, 24, roll_back=way) for way in (True, False))
    assert (rolled.token_ids, rolled.left) == (right, 0)
    assert rolled.kl < 1e-6
    if draft == "identical":
        assert (stale.token_ids, stale.left) == (right, 0)
    elif draft == "bad":  # rejected tokens stay and change the text
        assert stale.left > GAMMA
        assert stale.kl > 0.01
        assert stale.token_ids != right
        assert stale.token_ids[0] == right[0]  # nothing was rejected before it


# -- heads -----------------------------------------------------------------------------------


def test_a_multi_head_copy_agrees_and_averaging_its_heads_undoes_it():
    target = tiny_models.engine("llama").target
    ids = torch.randint(256, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode(), target.stock_attention() as model:
        right = model(ids).logits
        whole = multi_head(target)
        assert whole.config.num_key_value_heads == target.kv_heads * target.query_groups > target.kv_heads
        assert torch.allclose(whole(ids).logits, right, atol=1e-4)
        assert torch.allclose(pooled(whole, target.kv_heads)(ids).logits, right, atol=1e-4)
        assert not torch.allclose(pooled(whole, 1)(ids).logits, right, atol=1e-1)
    with pytest.raises(LabError, match="needs a Llama-like model"):
        multi_head(tiny_models.engine("gpt2").target)


def test_it_is_loaded_with_fewer_heads_from_no_file(monkeypatch):
    """Windows deletes no file that a model has been loaded from."""
    monkeypatch.setattr(tempfile, "TemporaryDirectory", None)
    engine = tiny_models.engine("llama")
    found = CLAIMS["kv-heads-8"].experiment(Trial(lambda pair: engine, small=True)).values
    assert (found["loads"], found["unfit"]) == (False, 2 * len(engine.target.layer_devices))


# -- promised speed-ups ----------------------------------------------------------------------


@settings(deadline=None)
@given(st.floats(1.05, 12), st.floats(0.0, 0.5), st.sampled_from([GAMMAS, [1], [4], [2, 8]]))
def test_the_needed_acceptance_is_just_enough(faster, cost, gammas):
    need = needed_acceptance(faster, cost, gammas)
    if math.isinf(need):
        assert best_speedup(1.0, cost, gammas) < faster
    else:
        assert best_speedup(need, cost, gammas) == pytest.approx(faster, rel=1e-6)
        assert best_speedup(max(0.0, need - 1e-3), cost, gammas) < faster


def test_a_draft_at_a_tenth_of_the_cost_never_gives_ten_times_the_speed():
    assert math.isinf(needed_acceptance(10, 0.1))
    assert needed_acceptance(2, 0.0, [1]) == pytest.approx(1)  # 1 + a
