"""Verdicts in C are those of lab.decode.acceptance, to the last bit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import SamplingParams
from lab.decode.acceptance import judge_matching, judge_sampled
from lab.decode.sampling import sample
from lab.native.judging import judge
from tests.native.test_sampling import NOT_FINITE

ROUNDS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from((0.0, 0.8, 1.0)), st.sampled_from(("near", "far", "none", "broken"))),
    min_size=1,
    max_size=4,
)


@settings(max_examples=80, deadline=None)
@given(rounds=ROUNDS, vocabulary=st.integers(2, 50), seed=st.integers(0, 9999))
def test_verdicts_are_those_of_torch_to_the_last_bit(rounds, vocabulary, seed):
    """Rounds of any window, greedy and drawn, from a draft that is near the target or far, has no distribution, or is
    not finite in one place."""
    generator = torch.Generator().manual_seed(seed)
    logits, proposals, draws, expected = [], [], [], []
    for window, temperature, draft in rounds:
        own = 2 * torch.randn(window + 1, vocabulary, generator=generator)
        u = torch.rand(window + 1, 3, generator=generator, dtype=torch.float64)
        apart = {"near": 0.3, "far": 3.0}.get(draft, 1.0)
        guessed = own[:-1] + apart * torch.randn(window, vocabulary, generator=generator)
        params = [SamplingParams(temperature=temperature)]
        q, tokens = sample(guessed, params * window, u[:-1, 0].contiguous(), native=True)
        if draft == "broken" and window:
            q[window // 2, vocabulary // 2] = math.nan
        if draft == "none":
            q = None
        p, chosen = sample(own, params * (window + 1), u[:, 2].contiguous(), native=True)
        if temperature and q is not None and window:
            kept, following = judge_sampled(p, q, tokens, u[:-1, 1], u[:, 2])
        else:
            kept, following = judge_matching(chosen, tokens)
        kept, following = kept.item(), following.item()
        rows = range(window)
        p_proposed = [p[i, tokens[i]].item() for i in rows]
        q_proposed = [1.0 if q is None else q[i, tokens[i]].item() for i in rows]
        expected.append((kept, following, p[kept, following].item(), p_proposed, q_proposed))
        logits.append(own)
        proposals.append((tokens, q) if window else None)
        draws.append(u)
    judged = judge(torch.cat(logits), [temperature for _, temperature, _ in rounds], proposals, draws)
    for actual, right in zip(judged, expected, strict=True):
        assert repr(tuple(actual)) == repr(right)  # in words, for NaN is not equal to itself


@pytest.mark.parametrize("odd", NOT_FINITE, ids=hex)
def test_what_is_not_finite_is_told(odd):
    logits = torch.zeros(3, 20)
    logits.view(torch.int32)[2, 7] = odd
    (judged,) = judge(logits, [0.0], [(torch.tensor([0, 0]), None)], [torch.zeros(3, 3, dtype=torch.float64)])
    assert judged.kept == 2
    assert judged.p == pytest.approx([1 / 20] * 2)
    assert math.isnan(judged.p_next)
