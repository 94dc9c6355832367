"""Ways to accept a draft token and to redraw a rejected one: the papers', and others.

Each decides on thousands of draft tokens after one text at once.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from lab.backends.torch.rejection_sampler import residual, typical_threshold
from lab.backends.torch.sampler import draw


class Context(NamedTuple):
    """Target's and draft's distributions of the token after a text, [vocabulary] float64."""

    p: torch.Tensor
    q: torch.Tensor


class Draws(NamedTuple):
    """Draft tokens [n] int64 from q, and two uniforms [n] float64 for each: for its verdict and for the redraw."""

    draft: torch.Tensor
    u: torch.Tensor
    u_next: torch.Tensor


AcceptanceRule = Callable[[Context, Draws], tuple[torch.Tensor, torch.Tensor]]
"""Which draft tokens are accepted [n] bool, and the tokens that come out [n] int64."""


def by_ratio(weights: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> AcceptanceRule:
    """Acceptance with min(1, p / q) (Leviathan et al., 2211.17192; Chen et al., 2302.01318); else ``weights(p, q)``."""

    def rule(context: Context, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
        p, q = context
        accepted = draws.u * q[draws.draft] < p[draws.draft]
        return accepted, torch.where(accepted, draws.draft, draw(weights(p, q), draws.u_next))

    return rule


with_residual = by_ratio(residual)
"""The rule of the papers: on rejection a draw from max(p - q, 0)."""
with_target = by_ratio(lambda p, q: p)
"""A wrong rule: on rejection a draw from p."""
with_absolute = by_ratio(lambda p, q: (p - q).abs())
"""On rejection a draw from |p - q|: negative weights made usable by dropping their signs."""


def by_target(context: Context, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    """Acceptance with probability p; on rejection a draw from p without the rejected token.

    The outcome is y if y was proposed and accepted, q(y) p(y), or if another x was rejected and y drawn in its place,
    the sum of q(x) (1 - p(x)) p(y) / (1 - p(x)) = (1 - q(y)) p(y): together p(y).
    """
    p, draft = context.p, draws.draft
    accepted = draws.u < p[draft]
    # The draft token's own stretch of the line from 0 to 1 is cut out: a point at or past its start moves on.
    point = draws.u_next * (1 - p[draft])
    point = torch.where(point >= p.cumsum(0)[draft] - p[draft], point + p[draft], point)
    return accepted, torch.where(accepted, draft, draw(p, point))


def by_threshold(context: Context, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    """Acceptance of whatever the target does not find too unlikely, as typical acceptance does; else a draw from p."""
    accepted = context.p[draws.draft] > typical_threshold(context.p)
    return accepted, torch.where(accepted, draws.draft, draw(context.p, draws.u_next))
