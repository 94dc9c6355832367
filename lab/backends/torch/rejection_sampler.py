"""The rejection sampler: which draft tokens are accepted, and which token comes after them.

Speculative sampling (Leviathan et al., 2211.17192, algorithm 1; Chen et al.,
2302.01318, algorithm 2). A draft token x drawn from q is accepted with probability
min(1, p(x) / q(x)). The first rejected one is replaced by a recovered token, drawn from the residual,
max(p - q, 0) renormalised; if all are accepted, one bonus token is drawn from
p. The tokens are then distributed exactly as if drawn from p one by one.

Pure functions of tensors: no model, no sequence, and nothing that waits for the device.
Lesson 9, why it is lossless. (vLLM: RejectionSampler.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from lab.backends.torch.sampler import draw


class Acceptance(NamedTuple):
    """Accepted draft tokens of one round or several, as tensors on their device.

    Attributes:
        accepted: [...] int64, number of draft tokens accepted, 0 to g.
        next_token: [...] int64, the token after them, recovered or bonus.
    """

    accepted: torch.Tensor
    next_token: torch.Tensor


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

    A draft token from a q that is not finite is rejected and replaced by a draw from p: only time is lost.

    Args:
        p: [..., g + 1, vocabulary] float32, the target's distributions.
        q: [..., g, vocabulary] float32, the draft's distributions, which the tokens were drawn from.
        draft: [..., g] int64.
        u: [..., g] float64 in [0, 1), one for each draft token.
        u_next: [..., g + 1] float64 in [0, 1), for the token after them, one for each position it may take.
    """
    p_drafted = p[..., :-1, :].gather(-1, draft[..., None])[..., 0]
    q_drafted = q.gather(-1, draft[..., None])[..., 0]
    accepted = _leading(u * q_drafted < p_drafted)

    weights = row(p, accepted)
    if count := q.shape[-2]:
        q_row = row(q, accepted.clamp_max(count - 1))
        # After the last draft token there is nothing to subtract: with q = 0 the residual is p, and the
        # bonus token needs no case of its own.
        known = q_row.isfinite().all(-1, keepdim=True) & (accepted < count)[..., None]
        weights = residual(weights, torch.where(known, q_row, 0.0))
    return Acceptance(accepted, draw(weights, u_next.gather(-1, accepted[..., None])[..., 0]))


def row(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Row ``index`` of each [n, vocabulary] matrix in x. [..., n, vocabulary], [...] -> [..., vocabulary]."""
    first = torch.arange(index.numel(), device=x.device) * x.shape[-2]
    return x.flatten(0, -2).index_select(0, first + index.flatten()).view(*index.shape, -1)


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The weights that a recovered token is drawn from: max(p - q, 0), not normalised. [..., vocabulary]."""
    left = (p - q).clamp_min(0)
    # With p = q everywhere a rejection can only come from rounding; the residual is then empty, and p is right.
    return torch.where(left.sum(-1, keepdim=True) == 0, p, left)


def _leading(accepted: torch.Tensor) -> torch.Tensor:
    """The number of True before the first False: [..., g] bool -> [...] int64."""
    return accepted.long().cumprod(-1).sum(-1)
