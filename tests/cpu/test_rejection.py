"""Rejection sampling in C gives the results of lab.backends.torch.rejection_sampler, to the last bit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import SamplingParams
from lab.backends.cpu.rejection import NativeVerdict
from lab.backends.torch.rejection_sampler import Acceptance, greedy_verify, rejection_sample, residual
from lab.backends.torch.token_distributions import gather_distributions, read_distributions
from tests.cpu.in_c import sample, verify
from tests.cpu.test_builds import NOT_FINITE

SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.0, logprobs=3),
    SamplingParams(temperature=1.0, top_k=4, logprobs=3),
    SamplingParams(temperature=1.0, top_p=0.7),
)
ROUNDS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(SAMPLINGS), st.sampled_from(("near", "far", "none", "broken"))),
    min_size=1,
    max_size=4,
)


@settings(max_examples=50, deadline=None)
@given(rounds=ROUNDS, vocabulary=st.integers(2, 50), seed=st.integers(0, 9999))
def test_verdicts_equal_those_of_torch_bit_for_bit(rounds, vocabulary, seed):
    """Rounds of any window, greedy and sampled, from a draft that is close to the target, far from it, has no
    distribution, or has a NaN in one place."""
    generator = torch.Generator().manual_seed(seed)
    logits, proposals, draws, expected = [], [], [], []
    for window, sampling, draft in rounds:
        own = 2 * torch.randn(window + 1, vocabulary, generator=generator)
        u = torch.rand(window + 1, 3, generator=generator, dtype=torch.float64)
        apart = {"near": 0.3, "far": 3.0}.get(draft, 1.0)
        guessed = own[:-1] + apart * torch.randn(window, vocabulary, generator=generator)
        q, tokens = sample(guessed, [sampling] * window, u[:-1, 0].contiguous(), native=True)
        if draft == "broken" and window:
            q[window // 2, vocabulary // 2] = math.nan
        if draft == "none":
            q = None
        p, chosen = sample(own, [sampling] * (window + 1), u[:, 2].contiguous(), native=True)
        if not sampling.greedy and q is not None and window:
            kept, following = rejection_sample(p, q, tokens, u[:-1, 1], u[:, 2])
        else:
            kept, following = greedy_verify(chosen, tokens)
        kept, following = kept.item(), following.item()
        rows = range(window)
        p_proposed = [p[i, tokens[i]].item() for i in rows]
        q_proposed = [1.0 if q is None else q[i, tokens[i]].item() for i in rows]
        expected.append((kept, following, p[kept, following].item(), p_proposed, q_proposed))
        logits.append(own)
        proposals.append((tokens, q) if window else None)
        draws.append(u)
    samplings = [sampling for _, sampling, _ in rounds]
    for sampling, actual, right in zip(
        samplings, verify(torch.cat(logits), samplings, proposals, draws), expected, strict=True
    ):
        assert repr(actual[:-1]) == repr(right)  # as text, since NaN is not equal to itself
        assert bool(actual.figures) == bool(sampling.logprobs and actual.p)


@settings(max_examples=50, deadline=None)
@given(
    window=st.integers(1, 5),
    vocabulary=st.integers(2, 50),
    count=st.sampled_from((1, 2, 20)),
    temperature=st.sampled_from((0.0, 0.02, 1.0, 1.0)),
    draft=st.sampled_from(("near", "far", "far", "none")),
    seed=st.integers(0, 9999),
)
def test_distributions_around_a_verdict_hold_the_likeliest_tokens(window, vocabulary, count, temperature, draft, seed):
    """In C and on torch alike. At temperature 0.02 most tokens have a probability of 0 and are left out."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(window + 1, vocabulary, generator=generator)
    u = torch.rand(window + 1, 3, generator=generator, dtype=torch.float64)
    apart = 0.3 if draft == "near" else 3.0
    guessed = logits[:-1] + apart * torch.randn(window, vocabulary, generator=generator)
    sampling = SamplingParams(temperature=temperature, logprobs=count)
    p, _ = sample(logits, [sampling] * (window + 1), None, native=True)
    q, tokens = sample(guessed, [sampling] * window, u[:-1, 0].contiguous(), native=True)
    q = None if draft == "none" else q
    (judged,) = verify(logits, [sampling], [(tokens, q)], [u])
    drawn = q is not None and temperature > 0
    found = read_distributions(judged.figures, window, judged.accepted, has_q=q is not None, is_sampled=drawn)
    verdict = Acceptance(torch.tensor([judged.accepted]), torch.tensor([judged.next_token]))
    by_torch = gather_distributions(p[None], None if q is None else q[None], tokens[None], verdict, count, drawn)[
        0
    ].tolist()
    for one, same in zip(
        found, read_distributions(by_torch, window, judged.accepted, has_q=q is not None, is_sampled=drawn), strict=True
    ):
        assert (one.token_ids, one.p, one.q) == (same.token_ids, same.p, same.q)
        assert one.residual == (same.residual and pytest.approx(same.residual, rel=1e-5))
    assert len(found) == min(judged.accepted + 1, window)
    for i, around in enumerate(found):
        ids = around.token_ids
        assert ids[0] == tokens[i]
        assert len(ids) == len(set(ids))
        weights = {"p": p[i]} | ({} if q is None else {"q": q[i]})
        replaced = drawn and i == judged.accepted
        if replaced:
            left = residual(p[i], q[i])
            weights["residual"] = left / left.sum()
            assert judged.next_token in ids
        assert around.overlap == (pytest.approx(torch.minimum(p[i], q[i]).sum().item(), rel=1e-5) if drawn else None)
        for name in ("p", "q", "residual"):
            assert (getattr(around, name) is None) == (name not in weights)
        for name, its in weights.items():
            told = torch.tensor(getattr(around, name))
            assert told == pytest.approx(its[ids], rel=1e-5)
            top = its.topk(min(count, vocabulary)).values
            assert told.sort(descending=True).values[: len(top)] == pytest.approx(top[: len(ids)], rel=1e-5)
        likely = len(weights) * count
        assert len(ids) <= 1 + likely + replaced
        assert all(any(its[token] > 0 for its in weights.values()) for token in ids[1:])


def one_round(vocabulary: int, q: torch.Tensor, u: float, logprobs: int = 0) -> NativeVerdict:
    """A round with token 0 proposed from ``q``, and all tokens equally likely under p. ``u`` is for the verdict."""
    draws = torch.tensor([[0.0, u, 0.0]] * 2, dtype=torch.float64)
    sampling = SamplingParams(temperature=1.0, logprobs=logprobs)
    (judged,) = verify(torch.zeros(2, vocabulary), [sampling], [(torch.tensor([0]), q[None])], [draws])
    return judged


def test_a_proposal_is_rejected_where_u_q_is_exactly_p():
    q = torch.tensor([1.0, 0.0])
    assert one_round(2, q, u=0.5)[:2] == (0, 1)
    assert one_round(2, q, u=0.5 - 2**-53)[0] == 1


def test_a_residual_without_weight_falls_back_to_p():
    """q is above p everywhere, as rounding may leave it: what is drawn first is then p's first token."""
    q = torch.full((8,), 1 / 8).nextafter(torch.ones(8))
    assert one_round(8, q, u=1 - 2**-53)[:2] == (0, 0)


def test_of_equally_likely_tokens_around_a_verdict_the_lowest_ids_are_told():
    judged = one_round(70, torch.full((70,), 1 / 70), u=0.0, logprobs=3)
    (around,) = read_distributions(judged.figures, 1, judged.accepted, has_q=True, is_sampled=True)
    assert around.token_ids == [0, 1, 2]


@pytest.mark.parametrize("odd", NOT_FINITE, ids=hex)
def test_non_finite_logits_give_a_nan_probability(odd):
    logits = torch.zeros(3, 20)
    logits.view(torch.int32)[2, 7] = odd
    (judged,) = verify(
        logits, [SamplingParams()], [(torch.tensor([0, 0]), None)], [torch.zeros(3, 3, dtype=torch.float64)]
    )
    assert judged.accepted == 2
    assert judged.p == pytest.approx([1 / 20] * 2)
    assert math.isnan(judged.p_next)
