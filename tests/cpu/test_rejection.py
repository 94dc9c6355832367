"""Rejection sampling in C gives the results of lab.backends.torch, to the last bit where their sums have one order."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import SamplingParams
from lab.backends.cpu.native_sampler import sample, verify
from lab.backends.interface import DraftRound, DraftTokens, Verification
from lab.backends.torch.batched_verification import verify_rounds
from lab.backends.torch.rejection_sampler import residual

NOT_FINITE = [0x7F800000, 0x7FC00000, 0x7FC000FF, 0x7FFFFFFF, 0xFFC00000 - 2**32, 0xFFFFFFFF - 2**32]
"""The bits of infinity and of some NaNs."""
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.0, logprobs=3),
    SamplingParams(temperature=1.0, top_k=4, logprobs=3),
    SamplingParams(temperature=1.0, top_p=0.7),
)
METHODS = st.sampled_from(("standard", "standard", "block", "typical"))
DISTANCES = {"near": 0.3, "far": 3.0}
"""Of a draft's logits from the target's."""


def random_round(
    generator: torch.Generator,
    window: int,
    vocabulary: int,
    sampling: SamplingParams,
    draft: str = "",
    method: str = "standard",
) -> tuple[torch.Tensor, torch.Tensor, DraftRound]:
    """The target's logits, the uniform numbers, and the round. ``draft``: near the target or far from it, "none": no
    distribution, or "broken": with a NaN in one place."""
    logits = 2 * torch.randn(window + 1, vocabulary, generator=generator)
    u = torch.rand(window + 1, 3, generator=generator, dtype=torch.float64)
    off = DISTANCES.get(draft, 1.0) * torch.randn(window, vocabulary, generator=generator)
    q, tokens = sample(logits[:-1] + off, [sampling] * window, u[:-1, 0].contiguous())
    if draft == "broken" and window:
        q[window // 2, vocabulary // 2] = math.nan
    tokens = DraftTokens(tokens, None if draft == "none" else q) if window else None
    return logits, u, DraftRound(sampling, tokens, u, method, top_tokens=3)


def assert_verified_as_by_torch(logits: torch.Tensor, rounds: list[DraftRound]) -> list[Verification]:
    found, expected = verify(logits, rounds), verify_rounds(logits, rounds, sample).results()
    for one, same, round in zip(found, expected, rounds, strict=True):
        # As text, since NaN is not equal to itself. C adds up residuals and overlaps in another order.
        without = {"distributions": [], "evidence": [], "top": []}
        assert repr(replace(one, **without)) == repr(replace(same, **without))
        for a, b in zip(one.top, same.top, strict=True):
            assert (a.token_ids, a.p) == (b.token_ids, b.p)
            assert a.entropy == pytest.approx(b.entropy, rel=1e-4, abs=1e-4)
        for a, b in zip(one.evidence, same.evidence, strict=True):
            assert tuple(a) == tuple(b if b is None else pytest.approx(b, rel=1e-5, abs=1e-7) for b in b)
        if round.has_q and not round.draft.q.isfinite().all():
            continue
        for a, b in zip(one.distributions, same.distributions, strict=True):
            assert repr((a.token_ids, a.p, a.q)) == repr((b.token_ids, b.p, b.q))
            for ours, theirs in ((a.residual, b.residual), (a.overlap, b.overlap)):
                assert ours == (theirs if theirs is None else pytest.approx(theirs, rel=1e-5, nan_ok=True))
    return found


@settings(max_examples=50, deadline=None)
@given(
    rounds=st.lists(
        st.tuples(
            st.integers(0, 5), st.sampled_from(SAMPLINGS), st.sampled_from(("near", "far", "none", "broken")), METHODS
        ),
        min_size=1,
        max_size=4,
    ),
    vocabulary=st.integers(2, 50),
    seed=st.integers(0, 9999),
)
def test_verdicts_equal_those_of_torch_bit_for_bit(rounds, vocabulary, seed):
    """Rounds of any window, greedy and sampled, by any rule."""
    generator = torch.Generator().manual_seed(seed)
    made = [
        random_round(generator, window, vocabulary, sampling, draft, method)
        for window, sampling, draft, method in rounds
    ]
    assert_verified_as_by_torch(torch.cat([logits for logits, *_ in made]), [round for *_, round in made])


@pytest.mark.parametrize("method", ["standard", "block", "typical"])
def test_one_draft_probability_that_is_not_finite_is_enough_for_a_draw_from_p(method):
    generator = torch.Generator().manual_seed(0)
    made = [random_round(generator, 1, 20, SAMPLINGS[1], "broken", method) for _ in range(50)]
    assert_verified_as_by_torch(torch.cat([logits for logits, *_ in made]), [round for *_, round in made])


@settings(max_examples=50, deadline=None)
@given(
    window=st.integers(1, 5),
    vocabulary=st.integers(2, 50),
    count=st.sampled_from((1, 2, 20)),
    temperature=st.sampled_from((0.0, 0.02, 1.0, 1.0)),
    draft=st.sampled_from(("near", "far", "far", "none")),
    method=METHODS,
    seed=st.integers(0, 9999),
)
def test_distributions_around_a_verdict_hold_the_likeliest_tokens(
    window, vocabulary, count, temperature, draft, method, seed
):
    """In C and on torch alike. At temperature 0.02 most tokens have a probability of 0 and are left out."""
    sampling = SamplingParams(temperature=temperature, logprobs=count)
    logits, _, round = random_round(torch.Generator().manual_seed(seed), window, vocabulary, sampling, draft, method)
    (verified,) = assert_verified_as_by_torch(logits, [round])
    p, _ = sample(logits, [sampling] * (window + 1), None)
    q, found = round.draft.q, verified.distributions
    assert len(found) == min(verified.num_accepted + 1, window)
    for i, around in enumerate(found):
        ids = around.token_ids
        assert ids[0] == round.draft.token_ids[i]
        assert len(ids) == len(set(ids))
        weights = {"p": p[i]} | ({} if q is None else {"q": q[i]})
        replaced = round.is_sampled and i == verified.num_accepted
        if replaced:
            product = verified.evidence[i - 1].product if i and method == "block" else 1.0
            left = p[i] if method == "typical" else residual(product * p[i], q[i])
            weights["residual"] = left / left.sum()
            assert verified.next_token in ids
        if round.is_sampled:
            assert around.overlap == pytest.approx(torch.minimum(p[i], q[i]).sum().item(), rel=1e-5)
        for name in ("p", "q", "residual"):
            assert (getattr(around, name) is None) == (name not in weights)
        for name, its in weights.items():
            listed = torch.tensor(getattr(around, name))
            assert listed == pytest.approx(its[ids], rel=1e-5)
            top = its.topk(min(count, vocabulary)).values
            assert listed.sort(descending=True).values[: len(top)] == pytest.approx(top[: len(ids)], rel=1e-5)
        assert len(ids) <= 1 + len(weights) * count + replaced
        assert all(any(its[token] > 0 for its in weights.values()) for token in ids[1:])


def verify_one(q: torch.Tensor, u: float, logprobs: int = 0) -> Verification:
    """A round with token 0 proposed from ``q``, and all tokens equally likely under p. ``u`` is for the verdict."""
    draws = torch.tensor([[0.0, u, 0.0]] * 2, dtype=torch.float64)
    sampling = SamplingParams(temperature=1.0, logprobs=logprobs)
    (verified,) = verify(torch.zeros(2, len(q)), [DraftRound(sampling, DraftTokens(torch.tensor([0]), q[None]), draws)])
    return verified


def test_a_proposal_is_rejected_where_u_q_is_exactly_p():
    q = torch.tensor([1.0, 0.0])
    rejected, accepted = verify_one(q, u=0.5), verify_one(q, u=0.5 - 2**-53)
    assert (rejected.num_accepted, rejected.next_token, accepted.num_accepted) == (0, 1, 1)


def test_a_residual_without_weight_falls_back_to_p():
    """q is above p everywhere, as rounding may leave it: what is drawn first is then p's first token."""
    verified = verify_one(torch.full((8,), 1 / 8).nextafter(torch.ones(8)), u=1 - 2**-53)
    assert (verified.num_accepted, verified.next_token) == (0, 0)


def test_of_equally_likely_tokens_around_a_verdict_the_lowest_ids_are_listed():
    (around,) = verify_one(torch.full((70,), 1 / 70), u=0.0, logprobs=3).distributions
    assert around.token_ids == [0, 1, 2]


@pytest.mark.parametrize("odd", NOT_FINITE, ids=hex)
def test_non_finite_logits_give_a_nan_probability(odd):
    logits = torch.zeros(3, 20)
    logits.view(torch.int32)[2, 7] = odd
    draft = DraftTokens(torch.tensor([0, 0]), None)
    (verified,) = verify(logits, [DraftRound(SamplingParams(), draft, torch.zeros(3, 3, dtype=torch.float64))])
    assert verified.num_accepted == 2
    assert verified.p == pytest.approx([1 / 20] * 2)
    assert math.isnan(verified.p_next)
    assert not verified.finite
