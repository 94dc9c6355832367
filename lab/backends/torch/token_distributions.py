"""The distributions around each verdict, for requests that ask to see them (``SamplingParams.logprobs``).

The probabilities of the most likely tokens under target, draft and residual are gathered on the device that
judges, and reach the host in the step's one copy.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from lab.backends.cpu.rejection import FIGURES
from lab.backends.torch.rejection_sampler import Verdict, residual


class Around(NamedTuple):
    """The tokens around one verdict, each once, the proposal first. On the host.

    Attributes:
        q: None if the drafter has no distribution.
        residual: max(p - q, 0), normalised. None where nothing was drawn from it.
        overlap: sum of min(p, q) over the vocabulary: the probability that a proposal drawn here is accepted
            (Leviathan et al., 2211.17192, theorem 3.5). None where no verdict was drawn.
    """

    token_ids: list[int]
    p: list[float]
    q: list[float] | None
    residual: list[float] | None
    overlap: float | None


def gather_around(
    p: torch.Tensor, q: torch.Tensor | None, proposals: torch.Tensor, verdict: Verdict, count: int, drawn: bool
) -> torch.Tensor:
    """The figures of the tokens around each proposal of S rounds with g proposals each.

    Args:
        p: [S, g + 1, vocabulary], the target's distributions.
        q: [S, g, vocabulary], the draft's; None if it has none.
        proposals: [S, g] int64.
        count: how many of the most likely tokens under each distribution.
        drawn: verdicts were drawn, and recovered tokens are drawn from the residual.

    Returns:
        [S, g * tokens * FIGURES + g] float32; for ``read_around``.
    """

    def likeliest(weights: torch.Tensor) -> torch.Tensor:
        top = weights.topk(min(count, weights.shape[-1]))
        return torch.where(top.values > 0, top.indices, proposals[..., None])  # no weight left: repeat the proposal

    p = p[:, :-1]
    none = torch.zeros_like(p)
    left = residual(p, q) if drawn else none
    ids = [proposals[..., None], likeliest(p)]
    ids += [likeliest(q)] if q is not None else []
    if drawn:
        left = left / left.sum(-1, keepdim=True)
        ids += [likeliest(left), verdict.next_token[:, None, None].expand(-1, p.shape[1], 1)]
    tokens = torch.cat(ids, dim=-1)
    values = [every.gather(-1, tokens) for every in (p, none if q is None else q, left)]
    overlap = torch.minimum(p, q).sum(-1) if drawn else none[..., 0]
    return torch.cat([torch.stack([tokens, *values], dim=-1).flatten(1), overlap], dim=1)


def read_around(numbers: list[float], window: int, accepted: int, *, has_q: bool, drawn: bool) -> list[Around]:
    """What ``gather_around`` gave for one round of ``window`` proposals, for each verdict up to the first rejection.

    Args:
        numbers: for each proposal equally many rows of ``FIGURES`` (id, p, q, residual), one after another: of the
            proposal, of the likeliest tokens under p, under q if there is one, and, if verdicts are drawn, under the
            residual, and of the recovered token. After all of them the overlap of each proposal.
    """
    numbers, overlaps = numbers[:-window], numbers[-window:]
    share = len(numbers) // window
    found = []
    for position in range(min(accepted + 1, window)):
        some = numbers[position * share : (position + 1) * share]
        rows = [some[at : at + FIGURES] for at in range(0, share, FIGURES)]
        replaced = drawn and position == accepted
        if drawn and not replaced:  # the last rows, of the residual and its draw, apply to a rejection only
            rows = rows[: 1 + 2 * (len(rows) - 2) // 3]
        once = {int(row[0]): row for row in rows}
        found.append(
            Around(
                token_ids=list(once),
                p=[row[1] for row in once.values()],
                q=[row[2] for row in once.values()] if has_q else None,
                residual=[row[3] for row in once.values()] if replaced else None,
                overlap=overlaps[position] if drawn else None,
            )
        )
    return found
