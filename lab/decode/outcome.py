"""A step's result: judged on the device, brought to the host once, told as events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lab.config import LabError, SamplingParams
from lab.decode.acceptance import judge_greedy, judge_sampled
from lab.decode.drafters import Proposals
from lab.decode.sampling import distribution
from lab.decode.sequence import Sequence
from lab.trace.events import Bonus, Committed, Judged, Proposed, Recovered


@dataclass(frozen=True, slots=True)
class Outcome:
    """On the host. ``p``, ``q`` and ``u`` are of the proposed tokens, ``p_next`` of the token after them."""

    proposed: list[int]
    p: list[float]
    q: list[float]
    u: list[float] | None
    accepted: int
    next_token: int
    p_next: float


def judge(
    logits: torch.Tensor, proposals: Proposals | None, sampling: SamplingParams, u: torch.Tensor | None
) -> Outcome:
    """Judge on the device, then bring everything the host needs over in one copy.

    Args:
        logits: [g + 1, vocabulary] float32, the target's.
        u: [g + 1] float64 on the CPU, one for each verdict and one for the token after. None: greedy.

    Raises:
        LabError: the model's output is not finite.
    """
    p = distribution(logits, sampling)
    if proposals is None:
        proposals = Proposals(torch.empty(0, dtype=torch.long, device=p.device), p[:0])
    tokens, q = proposals
    if u is None:
        accepted, next_token = judge_greedy(logits, tokens)
    else:
        on_device = u.to(p.device)
        accepted, next_token = judge_sampled(p, q, tokens, on_device[:-1], on_device[-1])
    p_proposed = p[:-1].gather(-1, tokens[:, None])[:, 0]
    q_proposed = q.gather(-1, tokens[:, None])[:, 0]
    p_next = p[accepted, next_token]
    # One tensor, one copy; float64 holds every token id exactly.
    packed = torch.cat([tokens, p_proposed, q_proposed, accepted[None], next_token[None], p_next[None]]).double()
    numbers = packed.tolist()
    if not all(0 <= number < float("inf") for number in numbers):
        raise LabError("The model's output is not finite. Try dtype='float32', or other weights.")
    g = len(tokens)
    return Outcome(
        proposed=[int(token) for token in numbers[:g]],
        p=numbers[g : 2 * g],
        q=numbers[2 * g : 3 * g],
        u=None if u is None else u[:g].tolist(),
        accepted=int(numbers[3 * g]),
        next_token=int(numbers[3 * g + 1]),
        p_next=numbers[3 * g + 2],
    )


def commit(sequence: Sequence, outcome: Outcome, token_text: Callable[[int], str]) -> None:
    """Add a step's tokens to the sequence and tell what happened. Tokens after a stop are dropped."""
    emit, step = sequence.recorder.emit, sequence.step
    window, accepted = len(outcome.proposed), outcome.accepted
    for i, (token, q) in enumerate(zip(outcome.proposed, outcome.q, strict=True)):
        emit(Proposed, step=step, position=i, token_id=token, text=token_text(token), q=q)
    for i in range(min(accepted + 1, window)):
        emit(
            Judged,
            step=step,
            position=i,
            token_id=outcome.proposed[i],
            p=outcome.p[i],
            q=outcome.q[i],
            u=outcome.u[i] if outcome.u else None,
            accepted=i < accepted,
        )
    origin = "plain"
    if window:
        origin = "bonus" if accepted == window else "recovered"
        emit(
            Bonus if accepted == window else Recovered,
            step=step,
            position=accepted,
            token_id=outcome.next_token,
            text=token_text(outcome.next_token),
            p=outcome.p_next,
        )
    tokens = [*outcome.proposed[:accepted], outcome.next_token]
    pieces = []
    for token in tokens:
        pieces.append(sequence.append(token))
        if sequence.reason:
            break
    kept = len(pieces)
    emit(
        Committed,
        step=step,
        token_ids=tuple(tokens[:kept]),
        origins=(*["accepted"] * accepted, origin)[:kept],
        pieces=tuple(pieces),
        probabilities=(*outcome.p[:accepted], outcome.p_next)[:kept],
        text="".join(pieces),
    )
