"""Judging a draft's proposals: which are kept, and which token comes after them.

Speculative sampling (Leviathan et al., 2211.17192, algorithm 1; Chen et al.,
2302.01318, algorithm 2). A token x proposed from q is accepted with probability
min(1, p(x) / q(x)). The first rejected one is replaced by a draw from the residual,
max(p - q, 0) renormalised; if all are accepted, one bonus token is drawn from
p. The tokens kept are then distributed exactly as if drawn from p one by one.

Pure functions of tensors: no model, no sequence, and nothing that waits for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from lab.backends.torch.sampler import draw


class Acceptance(NamedTuple):
    """The outcome of one round or several, as tensors on the device that judged.

    Attributes:
        accepted: [...] int64, number of proposals kept, 0 to g.
        next_token: [...] int64, the token after them, recovered or bonus.
    """

    accepted: torch.Tensor
    next_token: torch.Tensor


def greedy_verify(own: torch.Tensor, proposals: torch.Tensor) -> Acceptance:
    """Keep the proposals that match the target's own tokens, up to the first that does not.

    Under greedy decoding the target's own token is the most likely one. A token drawn from p without
    regard to the proposal works as well: whatever is proposed, the tokens kept are those drawn from p.

    Args:
        own: [..., g + 1] int64, the target's tokens after the last known token and after each proposal.
        proposals: [..., g] int64.
    """
    accepted = _leading(proposals == own[..., :-1])
    return Acceptance(accepted, own.gather(-1, accepted[..., None])[..., 0])


def rejection_sample(
    p: torch.Tensor, q: torch.Tensor, proposals: torch.Tensor, u: torch.Tensor, u_next: torch.Tensor
) -> Acceptance:
    """Keep each proposal x with probability min(1, p(x) / q(x)) until one is rejected.

    A proposal from a q that is not finite is rejected and replaced by a draw from p: only time is lost.

    Args:
        p: [..., g + 1, vocabulary] float32, the target's distributions.
        q: [..., g, vocabulary] float32, the draft's distributions, which the proposals were drawn from.
        proposals: [..., g] int64.
        u: [..., g] float64 in [0, 1), one for each verdict.
        u_next: [..., g + 1] float64 in [0, 1), for the token after them, one for each position it may take.
    """
    p_proposed = p[..., :-1, :].gather(-1, proposals[..., None])[..., 0]
    q_proposed = q.gather(-1, proposals[..., None])[..., 0]
    accepted = _leading(u * q_proposed < p_proposed)

    weights = row(p, accepted)
    if count := q.shape[-2]:
        q_row = row(q, accepted.clamp_max(count - 1))
        # After the last proposal there is nothing to subtract: with q = 0 the residual is p, and the
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


def _leading(kept: torch.Tensor) -> torch.Tensor:
    """How many are kept before the first that is not: [..., g] bool -> [...] int64."""
    return kept.long().cumprod(-1).sum(-1)
