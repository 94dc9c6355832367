"""All sequences' rounds of a step, verified on the device at once and copied to the host once.

For requests that ask for them with the probabilities of the likeliest tokens around each verdict, under target, draft
and residual (``SamplingParams.logprobs``), and of the target's at each position (``top_tokens``): gathered on the
device, in the same copy.
"""

from collections.abc import Callable, Sequence
from itertools import groupby, islice
from math import isfinite

import torch

from lab.backends.interface import (
    CHOOSE,
    VERIFY,
    DraftRound,
    DraftTokens,
    Evidence,
    PendingVerification,
    TokenDistributions,
    TopTokens,
    Verification,
)
from lab.backends.torch.rejection_sampler import METHODS, Acceptance, greedy_verify, recovery_weights, row
from lab.config import SamplingParams
from lab.util.device_copy import HostCopy, joined, on_device

FIGURES = 4
"""For each token of ``gather_distributions``: its id, p, q and residual probability."""
Sample = Callable[[torch.Tensor, Sequence[SamplingParams], torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]


def verify_rounds(logits: torch.Tensor, rounds: Sequence[DraftRound], sample: Sample) -> PendingVerification:
    """As ``Backend.verify``, with ``Backend.sample``.

    Rounds that are alike (as many draft tokens, verified in the same way) are computed together.
    """
    sampling = [round.sampling for round in rounds for _ in range(round.num_draft_tokens + 1)]
    kinds = [
        (
            *(it.num_draft_tokens, it.is_sampled, it.has_q, it.sampling.logprobs, it.top_tokens),
            it.method if it.is_sampled else "",
        )
        for it in rounds
    ]
    # [rows, 3]; where all are greedy, nothing is drawn.
    u = (
        None
        if all(one.greedy for one in sampling)
        else on_device(joined([it.uniforms for it in rounds]), logits.device)
    )
    # Where every verdict is drawn, the target's own tokens are not needed.
    chosen_by = None if u is None or all(kind[1] for kind in kinds) else u[:, CHOOSE]
    p, own = sample(logits, sampling, chosen_by)

    first_row, rows = [], 0
    for count, *_ in kinds:
        first_row.append(rows)
        rows += count + 1

    packed, sizes, order = [], [], sorted(range(len(rounds)), key=kinds.__getitem__)
    for (count, _, _, logprobs, top, method), members in groupby(order, key=kinds.__getitem__):
        indices = list(members)
        if len(indices) == len(rounds):  # all alike: their rows are already in order
            its = [every if every is None else every.unflatten(0, (len(rounds), count + 1)) for every in (p, u, own)]
        else:
            index = on_device(torch.tensor([first_row[i] for i in indices]), logits.device)[:, None]
            index = index + torch.arange(count + 1, device=logits.device)  # [S, count + 1]
            its = [every if every is None else every[index] for every in (p, u, own)]
        verified = _verify_alike(*its, [rounds[i].draft for i in indices], method, logprobs)
        verified = torch.cat([verified, gather_top(its[0], top)], dim=1) if top else verified
        packed.append(verified.flatten())
        sizes += [verified.shape[1]] * len(indices)
    fetched = HostCopy(joined(packed))  # one tensor, one copy; float32 holds every token id exactly

    def results() -> list[Verification]:
        numbers, found = iter(fetched.tolist()), {}
        for i, size in zip(order, sizes, strict=True):
            found[i] = read_verification(list(islice(numbers, size)), rounds[i])
        return [found[i] for i in range(len(rounds))]

    return PendingVerification(results, own)


def _verify_alike(
    p: torch.Tensor,
    u: torch.Tensor | None,
    own: torch.Tensor,
    drafts: list[DraftTokens | None],
    method: str,
    logprobs: int,
) -> torch.Tensor:
    """Verify S rounds of g draft tokens each. Returns [S, numbers per round].

    The numbers are g draft tokens, their p, their q, the number accepted, the next token and its p; the g thresholds
    and the g products or total variations that the rule has; and what ``gather_distributions`` gives if ``logprobs``
    are asked for.

    Args:
        method: the rule; "" where no verdict is drawn.
        p: [S, g + 1, vocabulary].
        u: [S, g + 1, 3]; None where nothing is drawn.
        own: [S, g + 1] int64, the target's tokens.
    """
    if own.shape[1] == 1:
        return torch.cat([torch.zeros_like(own), own, p[:, 0].gather(-1, own)], dim=1)
    tokens = torch.stack([some.token_ids for some in drafts])
    q = None if drafts[0].q is None else torch.stack([some.q for some in drafts])
    q_drafted = torch.ones_like(p[:, :-1, 0]) if q is None else q.gather(-1, tokens[..., None])[..., 0]
    if method:
        acceptance = METHODS[method](p, q, tokens, u[:, :-1, VERIFY], u[..., CHOOSE])
    else:
        acceptance = greedy_verify(own, tokens)
    accepted, next_token, *evidence = acceptance
    p_drafted = p[:, :-1].gather(-1, tokens[..., None])[..., 0]
    p_next = row(p, accepted).gather(-1, next_token[:, None])
    numbers = [tokens, p_drafted, q_drafted, accepted[:, None], next_token[:, None], p_next]
    numbers += [some.float() for some in evidence if some is not None]
    if logprobs:
        numbers.append(gather_distributions(p, q, tokens, acceptance, logprobs, method))
    return torch.cat(numbers, dim=1)


def read_verification(numbers: list[float], round: DraftRound) -> Verification:
    """A round's verification from its numbers, in the order that ``_verify_alike`` gives."""
    count = round.num_draft_tokens
    tokens, p, q = numbers[:count], numbers[count : 2 * count], numbers[2 * count : 3 * count]
    accepted, next_token, p_next, *figures = numbers[3 * count :]
    end = len(figures) - top_size(round)
    figures, top = figures[:end], figures[end:]
    evidence, figures = read_evidence(figures, round, int(accepted))
    sound = next((i for i, value in enumerate(q) if not isfinite(value)), count)
    if accepted > sound:  # greedy: the target happens to agree with a broken draft
        accepted, next_token, p_next = sound, tokens[sound], p[sound]
    return Verification(
        draft_token_ids=[int(token) for token in tokens[:sound]],
        p=p[:sound],
        q=q[:sound],
        u=round.uniforms[:sound, VERIFY].tolist() if round.is_sampled and round.method != "typical" else None,
        num_accepted=int(accepted),
        next_token=int(next_token),
        p_next=p_next,
        finite=all(isfinite(value) for value in (*p, p_next)),
        draft_finite=sound == count,
        distributions=read_distributions(figures, count, int(accepted), has_q=round.has_q, is_sampled=round.is_sampled)
        if figures
        else [],
        evidence=evidence[:sound],
        top=read_top(top, round.top_tokens, int(accepted) + 1) if top else [],
    )


def top_size(round: DraftRound) -> int:
    """Number of numbers that ``gather_top`` gives for a round."""
    return (round.num_draft_tokens + 1) * (2 * round.top_tokens + 1) if round.top_tokens else 0


def gather_top(p: torch.Tensor, count: int) -> torch.Tensor:
    """The likeliest tokens under the target's distributions.

    Args:
        p: [S, g + 1, vocabulary].

    Returns:
        [S, (g + 1) * (2 * count + 1)] float32: every position's ids (-1: none is left) and probabilities, the likeliest
        first; then each position's entropy.
    """
    likeliest = p.topk(min(count, p.shape[-1]))
    ids = torch.where(likeliest.values > 0, likeliest.indices, -1)
    pairs = torch.stack([ids, likeliest.values], dim=-1)
    pairs = torch.nn.functional.pad(pairs, (0, 0, 0, count - pairs.shape[2]), value=-1.0)
    return torch.cat([pairs.flatten(1), torch.special.entr(p).sum(-1)], dim=1)


def read_top(numbers: list[float], count: int, positions: int) -> list[TopTokens]:
    """Read what ``gather_top`` gave, for the first ``positions``."""
    found = []
    entropies = numbers[len(numbers) * 2 * count // (2 * count + 1) :]
    for i in range(positions):
        ids, p = (numbers[2 * count * i + one : 2 * count * (i + 1) : 2] for one in (0, 1))
        known = sum(id >= 0 for id in ids)
        found.append(TopTokens([int(id) for id in ids[:known]], p[:known], entropies[i]))
    return found


def read_evidence(numbers: list[float], round: DraftRound, accepted: int) -> tuple[list[Evidence], list[float]]:
    """The evidence on each verified draft token, from the beginning of ``numbers``, and the numbers after it."""
    count = round.num_draft_tokens
    if not round.is_sampled or round.method == "standard":
        return [], numbers
    finite = [value if isfinite(value) else None for value in numbers[: 2 * count]]
    pairs = list(zip(finite[:count], finite[count:], strict=True))
    if round.method == "block":  # which decides on all of them
        return [Evidence(threshold, product=product) for threshold, product in pairs], numbers[2 * count :]
    verified = pairs[: accepted + 1]
    return [Evidence(threshold, total_variation=moved) for threshold, moved in verified], numbers[2 * count :]


def gather_distributions(
    p: torch.Tensor, q: torch.Tensor | None, draft: torch.Tensor, acceptance: Acceptance, count: int, method: str
) -> torch.Tensor:
    """The figures of the tokens around each draft token of S rounds with g of them each.

    Args:
        p: [S, g + 1, vocabulary], the target's distributions.
        q: [S, g, vocabulary], the draft's; None if it has none.
        draft: [S, g] int64.
        count: how many of the most likely tokens under each distribution.
        method: the rule, whose residual recovered tokens are drawn from; "" where they are not drawn.

    Returns:
        [S, g * tokens * FIGURES + g] float32; for ``read_distributions``.
    """

    def likeliest(weights: torch.Tensor) -> torch.Tensor:
        top = weights.topk(min(count, weights.shape[-1]))
        return torch.where(top.values > 0, top.indices, draft[..., None])  # no weight left: repeat the draft token

    p = p[:, :-1]
    none = torch.zeros_like(p)
    left = recovery_weights(method, p, q, acceptance) if method else none
    ids = [draft[..., None], likeliest(p)]
    ids += [likeliest(q)] if q is not None else []
    if method:
        left = left / left.sum(-1, keepdim=True)
        ids += [likeliest(left), acceptance.next_token[:, None, None].expand(-1, p.shape[1], 1)]
    tokens = torch.cat(ids, dim=-1)
    values = [every.gather(-1, tokens) for every in (p, none if q is None else q, left)]
    overlap = torch.minimum(p, q).sum(-1) if method else none[..., 0]
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
