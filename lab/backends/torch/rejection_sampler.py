"""The rejection sampler: which draft tokens are accepted, and which token comes after them.

Three rules. All but the last leave the tokens distributed exactly as if drawn from p one by one:

- ``rejection_sample``, the standard one: each draft token by itself.
- ``block_verify``: all of a round together, which accepts at least as many on average.
- ``typical_accept``: whatever is likely enough. Lossy.

Pure functions of tensors: no model, no sequence, and nothing that waits for the device.
Lesson 9, why it is lossless. (vLLM: RejectionSampler.)
"""

from typing import NamedTuple

import torch

from lab.backends.torch.sampler import draw

EPSILON, DELTA = 0.09, 0.3
"""Medusa's published settings of typical acceptance (``posterior_threshold`` and ``posterior_alpha`` of its code)."""


class Acceptance(NamedTuple):
    """Accepted draft tokens of one round or several, as tensors on their device.

    Attributes:
        accepted: [...] int64, number of draft tokens accepted, 0 to g.
        next_token: [...] int64, the token after them, recovered or bonus.
        threshold, product, total_variation: [..., g], see ``lab.backends.interface.Evidence``.
    """

    accepted: torch.Tensor
    next_token: torch.Tensor
    threshold: torch.Tensor | None = None
    product: torch.Tensor | None = None
    total_variation: torch.Tensor | None = None


def greedy_verify(target_tokens: torch.Tensor, draft: torch.Tensor) -> Acceptance:
    """Accept the draft tokens that match the target's own, up to the first that does not.

    Under greedy decoding the target's own token is the most likely one. A token drawn from p without
    regard to the draft works as well: whatever was drafted, the tokens are those drawn from p.

    Args:
        target_tokens: [..., g + 1] int64, after the last known token and after each draft token.
        draft: [..., g] int64.
    """
    accepted = _leading(draft == target_tokens[..., :-1])
    return Acceptance(accepted, target_tokens.gather(-1, accepted[..., None])[..., 0])


def rejection_sample(
    p: torch.Tensor, q: torch.Tensor, draft: torch.Tensor, u: torch.Tensor, u_next: torch.Tensor
) -> Acceptance:
    """Accept each draft token x with probability min(1, p(x) / q(x)) until one is rejected.

    Speculative sampling (Leviathan et al., 2211.17192, algorithm 1; Chen et al., 2302.01318, algorithm 2). The first
    rejected token is replaced by a recovered one, drawn from the residual, max(p - q, 0) renormalised; if all are
    accepted, one bonus token is drawn from p. A draft token from a q that is not finite is rejected and replaced by a
    draw from p: only time is lost.

    Args:
        p: [..., g + 1, vocabulary] float32, the target's distributions.
        q: [..., g, vocabulary] float32, the draft's distributions, which the tokens were drawn from.
        draft: [..., g] int64.
        u: [..., g] float64 in [0, 1), one for each draft token.
        u_next: [..., g + 1] float64 in [0, 1), for the token after them, one for each position it may take.
    """
    p_drafted, q_drafted = _of_drafted(p, draft), _of_drafted(q, draft)
    accepted = _leading(u * q_drafted < p_drafted)

    weights = row(p, accepted)
    if count := q.shape[-2]:
        q_row = row(q, accepted.clamp_max(count - 1))
        # After the last draft token there is nothing to subtract: with q = 0 the residual is p, and the
        # bonus token needs no case of its own.
        known = q_row.isfinite().all(-1, keepdim=True) & (accepted < count)[..., None]
        weights = residual(weights, torch.where(known, q_row, 0.0))
    return Acceptance(accepted, draw(weights, _at(u_next, accepted)))


def block_verify(
    p: torch.Tensor, q: torch.Tensor, draft: torch.Tensor, u: torch.Tensor, u_next: torch.Tensor
) -> Acceptance:
    """Accept the longest block of draft tokens that passes its test (Sun et al., 2403.10444, algorithm 2).

    The product over a block x_1 .. x_i, P_i = min(1, P_(i-1) p(x_i) / q(x_i)) with P_0 = 1, is the probability that at
    least these i are accepted: a token that is likelier under p than under q makes up for those before it that are not.
    (The standard rule cuts off every factor at 1, and so accepts less.) With S_i the sum of max(P_i p - q, 0) after the
    block, it passes if u_i < S_i / (S_i + 1 - P_i), whether shorter ones did or not. The next token is drawn from
    max(P_i p - q, 0) after the longest block that passes. Arguments as of ``rejection_sample``, g > 0.
    """
    factors, before = _of_drafted(p, draft), torch.ones_like(u[..., 0], dtype=p.dtype)
    q_drafted, products = _of_drafted(q, draft), [before]
    for i in range(u.shape[-1]):
        products.append((products[-1] * factors[..., i] / q_drafted[..., i]).clamp_max(1))
    product = torch.stack(products, dim=-1)  # [..., g + 1]

    # After the last draft token, and where q is not finite, there is nothing to subtract: with q = 0 the block passes
    # with probability P_i, and the next token is drawn from p.
    q = torch.where(q.isfinite().all(-1, keepdim=True), q, 0.0)
    left = _scaled_residual(product, p, torch.cat([q, torch.zeros_like(p[..., :1, :])], dim=-2))
    mass = left.sum(-1)
    threshold = torch.where(product == 1, 1.0, mass / (mass + 1 - product))[..., 1:]

    lengths = torch.arange(1, u.shape[-1] + 1, device=u.device)
    accepted = ((u < threshold) * lengths).amax(-1)
    weights = row(left, accepted)
    weights = torch.where(weights.sum(-1, keepdim=True) == 0, row(p, accepted), weights)  # by rounding, as in residual
    return Acceptance(accepted, draw(weights, _at(u_next, accepted)), threshold, product[..., 1:])


def typical_accept(
    p: torch.Tensor, q: torch.Tensor, draft: torch.Tensor, u: torch.Tensor, u_next: torch.Tensor
) -> Acceptance:
    """Accept each draft token x with p(x) > min(epsilon, delta exp(-H(p))) until one is rejected; then draw from p.

    Typical acceptance (Cai et al., "Medusa", 2401.10774, section 2.3.1): the less certain the target is (H: the entropy
    of p), the less likely a token may be. It is lossy. The token at a position comes from q where p is above the
    threshold and otherwise from p, and so does not have the distribution p: ``total_variation`` says how far it is
    from it, by summing over the vocabulary. Arguments as of ``rejection_sample``; ``u`` decides nothing.
    """
    ahead = p[..., :-1, :].double()
    threshold = typical_threshold(ahead)
    likely = _of_drafted(p, draft) > threshold
    accepted = _leading(likely & _of_drafted(q, draft).isfinite())

    kept = torch.where(ahead > threshold[..., None], q.double(), 0.0)
    # Out comes kept + (1 - sum of kept) p; less p, that is:
    moved = kept - kept.sum(-1, keepdim=True) * ahead
    next_token = draw(row(p, accepted), _at(u_next, accepted))
    return Acceptance(accepted, next_token, threshold, total_variation=moved.abs().sum(-1) / 2)


def typical_threshold(p: torch.Tensor) -> torch.Tensor:
    """Probability that a draft token has to exceed. p: [..., vocabulary] float64."""
    return (DELTA * torch.exp(-torch.special.entr(p).sum(-1))).clamp_max(EPSILON)


METHODS = {"standard": rejection_sample, "block": block_verify, "typical": typical_accept}
"""The rules by the name that ``EngineConfig.rejection_sample_method`` has for them."""


def recovery_weights(method: str, p: torch.Tensor, q: torch.Tensor, acceptance: Acceptance) -> torch.Tensor:
    """The weights of a recovered token at each of g positions, if it were drawn there. p, q, result: [..., g,
    vocabulary]."""
    if method == "typical":
        return p
    if method == "standard":
        return residual(p, q)
    before = torch.cat([torch.ones_like(acceptance.product[..., :1]), acceptance.product[..., :-1]], dim=-1)
    left = _scaled_residual(before, p, q)
    return torch.where(left.sum(-1, keepdim=True) == 0, p, left.to(p.dtype))


def row(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Row ``index`` of each [n, vocabulary] matrix in x. [..., n, vocabulary], [...] -> [..., vocabulary]."""
    first = torch.arange(index.numel(), device=x.device) * x.shape[-2]
    return x.flatten(0, -2).index_select(0, first + index.flatten()).view(*index.shape, -1)


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The weights that a recovered token is drawn from: max(p - q, 0), not normalised. [..., vocabulary]."""
    left = (p - q).clamp_min(0)
    # With p = q everywhere a rejection can only come from rounding; the residual is then empty, and p is right.
    return torch.where(left.sum(-1, keepdim=True) == 0, p, left)


def _scaled_residual(product: torch.Tensor, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """max(product p - q, 0) in float64, [..., vocabulary]: a product of float32 numbers is exact there."""
    return (product.double()[..., None] * p - q).clamp_min(0)


def _leading(accepted: torch.Tensor) -> torch.Tensor:
    """The number of True before the first False: [..., g] bool -> [...] int64."""
    return accepted.long().cumprod(-1).sum(-1)


def _of_drafted(rows: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Probabilities of the draft tokens. [..., g or more, vocabulary], [..., g] -> [..., g]."""
    return rows[..., : draft.shape[-1], :].gather(-1, draft[..., None])[..., 0]


def _at(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """[..., n], [...] -> [...]."""
    return values.gather(-1, index[..., None])[..., 0]
