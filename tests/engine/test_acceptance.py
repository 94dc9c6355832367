"""Speculative sampling preserves the target's distribution, by tests with the power to see it if it did not.

Many rounds are verified at once on random distributions over a small vocabulary; a G-test compares
the first two tokens a round gives with what the target alone would give.
"""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

from lab import SamplingParams
from lab.backends.torch.rejection_sampler import (
    METHODS,
    Acceptance,
    block_verify,
    greedy_verify,
    rejection_sample,
    typical_accept,
)
from lab.backends.torch.sampler import distribution, draw
from lab.measure.interval import g_test

VOCABULARY = 8
ROUNDS = 100_000
SAMPLINGS = {
    "plain": SamplingParams(temperature=1.0),
    "hot": SamplingParams(temperature=1.7),
    "cold": SamplingParams(temperature=0.5),
    "top_k": SamplingParams(temperature=1.0, top_k=4),
    "top_p": SamplingParams(temperature=1.0, top_p=0.7),
    "all": SamplingParams(temperature=0.8, top_k=5, top_p=0.9),
}
# A correct rule falls below this once in a million tests; test_the_test_has_power shows that a wrong one does.
REJECT_BELOW = 1e-6


def uniforms(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=generator)


def play(sampling: SamplingParams, verify_all, seed: int, draws: str = "probabilistic") -> tuple[float, float]:
    """p-values for the first token and for the pair of first tokens that rounds of gamma 2 give.

    The models are tables: next-token logits by the previous token (a Markov chain), so that the
    second token's distribution depends on the first, as it does in a language model. The draft ``draws`` its tokens,
    or takes the likeliest ("greedy").
    """
    generator = torch.Generator().manual_seed(seed)
    target = distribution(torch.randn(VOCABULARY, VOCABULARY, generator=generator), sampling)
    draft = distribution(torch.randn(VOCABULARY, VOCABULARY, generator=generator), sampling)
    if draws == "greedy":
        draft = torch.nn.functional.one_hot(draft.argmax(-1), VOCABULARY).float()
    previous = torch.zeros(ROUNDS, dtype=torch.long)
    first = draw(draft[previous], uniforms(ROUNDS, generator=generator))
    second = draw(draft[first], uniforms(ROUNDS, generator=generator))
    p = torch.stack([target[previous], target[first], target[second]], dim=1)
    q = torch.stack([draft[previous], draft[first]], dim=1)
    proposals = torch.stack([first, second], dim=1)
    u = uniforms(ROUNDS, 2, generator=generator)
    accepted, after, *_ = verify_all(p, q, proposals, u, uniforms(ROUNDS, 3, generator=generator))

    out_first = torch.where(accepted > 0, first, after)
    # A round that gave only one token continues from the target: any next round has the same distribution.
    from_target = draw(target[out_first], uniforms(ROUNDS, generator=generator))
    out_second = torch.where(accepted > 1, second, torch.where(accepted == 1, after, from_target))

    expected_first = target[0]
    pairs = torch.bincount(out_first * VOCABULARY + out_second, minlength=VOCABULARY**2)
    expected_pairs = (expected_first[:, None] * target).flatten()
    return (g_test(torch.bincount(out_first, minlength=VOCABULARY), expected_first), g_test(pairs, expected_pairs))


def redraws_from_p(p, q, proposals, u, u_next, verify_all=rejection_sample) -> Acceptance:
    """The mistake to catch: after a rejection, draw from p itself instead of the residual."""
    right = verify_all(p, q, proposals, u, u_next)
    row = p.take_along_dim(right.accepted[:, None, None], dim=1)[:, 0]
    rejected = right.accepted < proposals.shape[1]
    return right._replace(next_token=torch.where(rejected, draw(row, u_next[:, 0]), right.next_token))


CASES = [(name, method, "probabilistic") for name in SAMPLINGS for method in ("standard", "block")]
CASES += [("plain", method, "greedy") for method in ("standard", "block")]


@pytest.mark.parametrize(("name", "method", "draws"), CASES)
def test_verified_rounds_follow_the_target(name, method, draws):
    for seed in range(3):
        for p_value in play(SAMPLINGS[name], METHODS[method], seed, draws):
            assert p_value > REJECT_BELOW


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method", "draws"), CASES)
def test_the_test_has_power(name, method, draws):
    """The same test fails, on every seed, when the residual is replaced by p."""
    for seed in range(3):
        verify_all = functools.partial(redraws_from_p, verify_all=METHODS[method])
        assert min(play(SAMPLINGS[name], verify_all, seed, draws)) < REJECT_BELOW


@pytest.mark.parametrize("draws", ["probabilistic", "greedy"])
def test_typical_acceptance_is_lossy(draws):
    for seed in range(3):
        assert min(play(SAMPLINGS["plain"], typical_accept, seed, draws)) < REJECT_BELOW


def random_pair(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(seed)).softmax(-1)


@pytest.mark.parametrize("greedy", [False, True])
def test_total_variation_is_that_of_what_typical_acceptance_gives(greedy):
    """By every draft token that there is, weighted with its probability."""
    for seed in range(20):
        p, q = random_pair(seed)
        q = torch.nn.functional.one_hot(q.argmax(-1), VOCABULARY).float() if greedy else q
        verdict = typical_accept(
            p.expand(VOCABULARY, 2, -1),
            q.expand(VOCABULARY, 1, -1),
            torch.arange(VOCABULARY)[:, None],
            torch.zeros(VOCABULARY, 1).double(),
            torch.zeros(VOCABULARY, 2).double(),
        )
        entropy = -(p * p.log()).sum()
        assert verdict.threshold[0].item() == pytest.approx(min(0.09, 0.3 * torch.exp(-entropy).item()), rel=1e-5)
        kept = verdict.accepted.bool()
        assert torch.equal(kept, p > verdict.threshold[:, 0])
        outcome = torch.where(kept, q, 0) + q[~kept].sum() * p
        assert verdict.total_variation.flatten().tolist() == pytest.approx(
            [(outcome - p).abs().sum().item() / 2] * VOCABULARY, abs=1e-6
        )


def expected_accepted(target: torch.Tensor, draft: torch.Tensor, gamma: int) -> tuple[list[float], list[float], float]:
    """Probabilities that at least 1 .. gamma draft tokens are accepted, by the standard rule and by block verification,
    and by the latter's products: exactly, over all texts that the draft may propose. Markov chains, from token 0."""
    words = len(target)
    texts = torch.tensor(list(itertools.product(range(words), repeat=gamma)))
    before = torch.cat([torch.zeros(len(texts), 1, dtype=torch.long), texts], dim=1)
    p, q = target[before], draft[before[:, :-1]]
    of_p, of_q = (rows[:, :gamma].gather(-1, texts[..., None])[..., 0] for rows in (p, q))
    likely = of_q.prod(-1)
    standard = (of_p / of_q).clamp_max(1).cumprod(-1)
    zeros = torch.zeros(len(texts), gamma + 1).double()
    block = block_verify(p, q, texts, zeros[:, 1:], zeros)
    # At least i are accepted unless all blocks of i and more fail.
    fails = (1 - block.threshold).flip(-1).cumprod(-1).flip(-1)
    return tuple((likely[:, None] * some).sum(0).tolist() for some in (standard, 1 - fails, block.product))


def test_block_verification_accepts_at_least_as_much():
    """Sun et al., 2403.10444: their example, and random chains; by exact computation."""
    p, q = torch.tensor([[1 / 3, 2 / 3]] * 2).double(), torch.tensor([[2 / 3, 1 / 3]] * 2).double()
    standard, block, _ = expected_accepted(p, q, 2)
    assert (sum(standard), sum(block)) == (pytest.approx(10 / 9), pytest.approx(11 / 9))
    generator, gains = torch.Generator().manual_seed(0), []
    for scale in (0.1, 1.0, 1.0, 3.0, 3.0) * 4:
        target, draft = (scale * torch.randn(2, 4, 4, generator=generator, dtype=torch.float64)).softmax(-1)
        standard, block, products = expected_accepted(target, draft, 4)
        assert block == pytest.approx(products, abs=1e-6)
        assert all(b >= s - 1e-9 for b, s in zip(block, standard, strict=True))
        assert block[0] == pytest.approx(standard[0], abs=1e-6), "the first draft token is accepted as often"
        gains.append(sum(block) - sum(standard))
    assert max(gains) > 0.1


def test_block_verification_of_one_draft_token_is_the_standard_rule():
    generator = torch.Generator().manual_seed(2)
    p = torch.randn(500, 2, VOCABULARY, generator=generator).softmax(-1)
    q = torch.randn(500, 1, VOCABULARY, generator=generator).softmax(-1)
    proposals = draw(q[:, 0], uniforms(500, generator=generator))[:, None]
    u, u_next = uniforms(500, 1, generator=generator), uniforms(500, 2, generator=generator)
    one, other = (verify_all(p, q, proposals, u, u_next)[:2] for verify_all in (rejection_sample, block_verify))
    assert all(map(torch.equal, one, other))


def test_acceptance_rate_is_the_shared_mass():
    """Expected acceptance of one proposal is the sum of min(p, q): Leviathan et al., corollary 3.6."""
    generator = torch.Generator().manual_seed(5)
    p = torch.randn(VOCABULARY, generator=generator).softmax(-1)
    q = torch.randn(VOCABULARY, generator=generator).softmax(-1)
    n = 400_000
    proposals = draw(q.expand(n, -1), uniforms(n, generator=generator))[:, None]
    accepted, *_ = rejection_sample(
        p.expand(n, 2, -1),
        q.expand(n, 1, -1),
        proposals,
        uniforms(n, 1, generator=generator),
        torch.zeros(n, 2).double(),
    )
    shared = torch.minimum(p, q).sum().item()
    assert accepted.double().mean().item() == pytest.approx(shared, abs=5 * (0.25 / n) ** 0.5)


def test_empty_residual_falls_back_to_p():
    """p = q, and still rejected (u rounded to p / q): the residual is empty, the next token comes from p."""
    p = torch.tensor([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]])
    u = torch.tensor([1.0], dtype=torch.float64)
    for u_next, token in ((0.0, 1), (0.24, 1), (0.26, 2), (1 - 2**-53, 2)):
        verdict = rejection_sample(p, p[:1], torch.tensor([2]), u, torch.tensor([u_next, 0.5], dtype=torch.float64))
        assert (verdict.accepted.item(), verdict.next_token.item()) == (0, token)


def test_matching_keeps_the_agreeing_prefix():
    own = torch.tensor([3, 1, 4, 2])
    for proposals, accepted, after in (([3, 1, 4], 3, 2), ([3, 1, 0], 2, 4), ([0, 1, 4], 0, 3), ([3, 0, 4], 1, 1)):
        verdict = greedy_verify(own, torch.tensor(proposals))
        assert (verdict.accepted.item(), verdict.next_token.item()) == (accepted, after)
    assert greedy_verify(own[:1], torch.empty(0, dtype=torch.long)).next_token.item() == 3


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("gamma", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_a_batch_is_verified_as_each_of_its_rounds_alone(method, gamma, broken):
    """Also beside a draft that is broken."""
    generator, rounds = torch.Generator().manual_seed(gamma), 60
    p = torch.randn(rounds, gamma + 1, VOCABULARY, generator=generator).softmax(-1)
    q = torch.randn(rounds, gamma, VOCABULARY, generator=generator).softmax(-1)
    if broken:
        q[::6, :, :3] = torch.nan
    proposals = torch.randint(VOCABULARY, (rounds, gamma), generator=generator)
    u, u_next = uniforms(rounds, gamma, generator=generator), uniforms(rounds, gamma + 1, generator=generator)
    together = METHODS[method](p, q, proposals, u, u_next)
    alone = [METHODS[method](*row) for row in zip(p, q, proposals, u, u_next, strict=True)]
    assert together.accepted.tolist() == [verdict.accepted.item() for verdict in alone]
    assert together.next_token.tolist() == [verdict.next_token.item() for verdict in alone]


@pytest.mark.parametrize("likely", [torch.nan, 0.5])
@pytest.mark.parametrize("method", METHODS)
def test_a_proposal_of_a_broken_draft_is_rejected_and_replaced_from_p(method, likely):
    """One number that is not finite is enough."""
    p = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])
    q = torch.tensor([[0.25, 0.75, 0.0], [likely, torch.nan, likely]])
    for u_next, token in ((0.1, 1), (0.9, 2)):
        u_next = torch.tensor([0.9, u_next, 0.9], dtype=torch.float64)
        verdict = METHODS[method](p, q, torch.tensor([1, 1]), torch.zeros(2).double(), u_next)
        assert (verdict.accepted.item(), verdict.next_token.item()) == (1, token)


def test_each_row_may_have_its_own_sampling():
    logits = torch.randn(len(SAMPLINGS) + 1, VOCABULARY, generator=torch.Generator().manual_seed(1))
    rows = [*SAMPLINGS.values(), SamplingParams()]
    together = distribution(logits, rows)
    for row, sampling, p in zip(logits, rows, together, strict=True):
        assert torch.allclose(distribution(row[None], sampling)[0], p)
        assert p.sum().item() == pytest.approx(1, abs=1e-5)


def test_draw_tells_tokens_apart_that_a_float32_sum_does_not():
    """After a likely token, as many that are unlikely as a large vocabulary has."""
    weights = torch.full((100_001,), 1e-8)
    weights[0] = 1.0
    sums = weights.double().cumsum(-1)
    for token in (1, 2, 50_000, 99_999):
        u = (sums[token - 1] + sums[token]) / 2 / sums[-1]
        assert draw(weights, u).item() == token


def test_draw_gives_a_token_even_if_weights_are_not_finite():
    """Else a sequence whose target is broken would end the step of all others with it."""
    for broken in (torch.nan, torch.inf):
        weights = torch.tensor([[0.5, broken, 0.5], [0.5, 0.0, 0.5]])
        first, second = draw(weights, torch.full((2,), 0.9, dtype=torch.float64)).tolist()
        assert 0 <= first < 3
        assert second == 2


def test_top_k_and_top_p_keep_the_likeliest():
    logits = torch.log(torch.tensor([0.1, 0.4, 0.3, 0.2]))
    kept = [
        set(distribution(logits, SamplingParams(temperature=1.0, top_k=k, top_p=top_p)).nonzero().flatten().tolist())
        for k, top_p in itertools.product((0, 2), (1.0, 0.6, 0.01))
    ]
    assert kept == [{0, 1, 2, 3}, {1, 2}, {1}, {1, 2}, {1, 2}, {1}]
    for k, top_p in itertools.product((0, 2), (1.0, 0.6)):
        assert distribution(logits, SamplingParams(temperature=2.0, top_k=k, top_p=top_p)).sum().item() == (
            pytest.approx(1, abs=1e-5)
        )


@pytest.mark.parametrize("method", METHODS)
def test_the_token_after_the_last_proposal_is_drawn_from_p(method):
    """Nothing was rejected, so nothing of q is subtracted."""
    p = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.25, 0.5]])
    q = torch.tensor([[0.5, 0.5, 0.0]])
    for u_next, token in ((0.249, 0), (0.251, 1), (0.499, 1), (0.501, 2)):
        u_next = torch.tensor([0.9, u_next], dtype=torch.float64)
        verdict = METHODS[method](p, q, torch.tensor([0]), torch.zeros(1).double(), u_next)
        assert (verdict.accepted.item(), verdict.next_token.item()) == (1, token)
