"""The distributions around each verdict, for requests that ask to see them (``SamplingParams.logprobs``).

The probabilities of the most likely tokens under target, draft and residual are gathered on the device that
judges, and reach the host in the step's one copy.
"""

from __future__ import annotations

import torch

from lab.backends.interface import TokenDistributions
from lab.backends.torch.rejection_sampler import Acceptance, residual

FIGURES = 4
"""For each token: its id, p, q and residual probability."""


def gather_distributions(
    p: torch.Tensor, q: torch.Tensor | None, draft: torch.Tensor, acceptance: Acceptance, count: int, is_sampled: bool
) -> torch.Tensor:
    """The figures of the tokens around each draft token of S rounds with g of them each.

    Args:
        p: [S, g + 1, vocabulary], the target's distributions.
        q: [S, g, vocabulary], the draft's; None if it has none.
        draft: [S, g] int64.
        count: how many of the most likely tokens under each distribution.
        is_sampled: recovered tokens are drawn from the residual.

    Returns:
        [S, g * tokens * FIGURES + g] float32; for ``read_distributions``.
    """

    def likeliest(weights: torch.Tensor) -> torch.Tensor:
        top = weights.topk(min(count, weights.shape[-1]))
        return torch.where(top.values > 0, top.indices, draft[..., None])  # no weight left: repeat the draft token

    p = p[:, :-1]
    none = torch.zeros_like(p)
    left = residual(p, q) if is_sampled else none
    ids = [draft[..., None], likeliest(p)]
    ids += [likeliest(q)] if q is not None else []
    if is_sampled:
        left = left / left.sum(-1, keepdim=True)
        ids += [likeliest(left), acceptance.next_token[:, None, None].expand(-1, p.shape[1], 1)]
    tokens = torch.cat(ids, dim=-1)
    values = [every.gather(-1, tokens) for every in (p, none if q is None else q, left)]
    overlap = torch.minimum(p, q).sum(-1) if is_sampled else none[..., 0]
    return torch.cat([torch.stack([tokens, *values], dim=-1).flatten(1), overlap], dim=1)


def read_distributions(
    numbers: list[float], count: int, accepted: int, *, has_q: bool, is_sampled: bool
) -> list[TokenDistributions]:
    """Read what ``gather_distributions`` gave for ``count`` draft tokens, for each up to the first rejected one.

    Args:
        numbers: for each draft token equally many rows of ``FIGURES`` (id, p, q, residual), one after another: of the
            draft token, of the likeliest tokens under p, under q if there is one, and, if it is sampled, under the
            residual, and of the recovered token. After all of them the overlap of each.
    """
    numbers, overlaps = numbers[:-count], numbers[-count:]
    share = len(numbers) // count
    found = []
    for position in range(min(accepted + 1, count)):
        some = numbers[position * share : (position + 1) * share]
        rows = [some[at : at + FIGURES] for at in range(0, share, FIGURES)]
        replaced = is_sampled and position == accepted
        if is_sampled and not replaced:  # the last rows, of the residual and its draw, apply to a rejection only
            rows = rows[: 1 + 2 * (len(rows) - 2) // 3]
        once = {int(row[0]): row for row in rows}
        found.append(
            TokenDistributions(
                token_ids=list(once),
                p=[row[1] for row in once.values()],
                q=[row[2] for row in once.values()] if has_q else None,
                residual=[row[3] for row in once.values()] if replaced else None,
                overlap=overlaps[position] if is_sampled else None,
            )
        )
    return found
