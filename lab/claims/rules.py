"""Ways to accept a guess and to redraw a rejected one: the papers', and others.

Each judges thousands of guesses after one text at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from lab.backends.torch.rejection_sampler import residual
from lab.backends.torch.sampler import draw


class Context(NamedTuple):
    """Target's and draft's distributions of the token after a text, [vocabulary] float64."""

    p: torch.Tensor
    q: torch.Tensor


class Draws(NamedTuple):
    """Guesses [n] int64 from q, and two uniforms [n] float64 for each: for its verdict and for the redraw."""

    guess: torch.Tensor
    u: torch.Tensor
    u_next: torch.Tensor


Rule = Callable[[Context, Draws], tuple[torch.Tensor, torch.Tensor]]
"""Whether each guess is kept [n] bool, and the token that comes out [n] int64."""


def by_ratio(context: Context, draws: Draws) -> torch.Tensor:
    """Kept with probability min(1, p / q), as Leviathan et al. (2211.17192) and Chen et al. (2302.01318) do."""
    return draws.u * context.q[draws.guess] < context.p[draws.guess]


def with_residual(context: Context, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    """The rule of the papers: on rejection a draw from max(p - q, 0)."""
    kept = by_ratio(context, draws)
    return kept, torch.where(kept, draws.guess, draw(residual(*context), draws.u_next))


def with_target(context: Context, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    """The wrong rule that the test has to notice: on rejection a draw from p."""
    kept = by_ratio(context, draws)
    return kept, torch.where(kept, draws.guess, draw(context.p, draws.u_next))


def with_absolute(context: Context, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    """On rejection a draw from |p - q|: negative weights made usable by dropping their signs."""
    kept = by_ratio(context, draws)
    return kept, torch.where(kept, draws.guess, draw((context.p - context.q).abs(), draws.u_next))


def by_target(context: Context, draws: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    """Kept with probability p; on rejection a draw from p without the rejected token.

    The outcome is y if y was guessed and kept, q(y) p(y), or if another x was rejected and y drawn in its place, the
    sum of q(x) (1 - p(x)) p(y) / (1 - p(x)) = (1 - q(y)) p(y): together p(y).
    """
    p, guess = context.p, draws.guess
    kept = draws.u < p[guess]
    # The guess's own stretch of the line from 0 to 1 is cut out: a point at or past its start moves on by its length.
    point = draws.u_next * (1 - p[guess])
    point = torch.where(point >= p.cumsum(0)[guess] - p[guess], point + p[guess], point)
    return kept, torch.where(kept, guess, draw(p, point))
