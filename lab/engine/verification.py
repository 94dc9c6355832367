"""A step's result: judged on the device, copied to the host once, emitted as events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby, islice
from math import isfinite
from typing import NamedTuple

import torch

from lab.backends.cpu import rejection as in_c
from lab.backends.torch.rejection_sampler import judge_matching, judge_sampled, row
from lab.backends.torch.sampler import sample
from lab.backends.torch.token_distributions import Around, gather_around, read_around
from lab.engine.drafters import Proposals
from lab.engine.sequence import CHOOSE, JUDGE, Sequence
from lab.kv_cache.formats import Kernels
from lab.trace.events import Bonus, Committed, Distributions, Judged, Proposed, Recovered
from lab.util.device_copy import HostCopy, joined, on_device


class Round(NamedTuple):
    """One sequence's part of what is to be judged in a step.

    ``proposals`` None: a step without any, which gives one token.
    """

    sequence: Sequence
    proposals: Proposals | None

    @property
    def window(self) -> int:
        return len(self.proposals.tokens) if self.proposals else 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A judged round of g proposals, on the host. Those from the first non-finite q on are left out.

    Attributes:
        proposed: [g] token ids.
        p, q: [g], their probabilities.
        u: [g] in [0, 1), the draws for their verdicts. None: verdicts are not drawn.
        accepted: how many are kept, 0 to g.
        next_token: the token after them; ``p_next``: its probability.
        finite: whether the target's output is. ``draft_finite``: whether the drafter's is.
        around: for each judged proposal, so min(accepted + 1, g) at least. Empty: not asked for.
    """

    proposed: list[int]
    p: list[float]
    q: list[float]
    u: list[float] | None
    accepted: int
    next_token: int
    p_next: float
    finite: bool
    draft_finite: bool
    around: list[Around]


class Judging(NamedTuple):
    """Rounds that the device judges while the host goes on.

    Attributes:
        outcomes: waits for them.
        own: [rows of the logits] int64, the target's own tokens, on the device. None if C judges.
    """

    outcomes: Callable[[], list[Outcome]]
    own: torch.Tensor | None


def judge(
    logits: torch.Tensor, rounds: list[Round], *, native: bool = False, kernels: Kernels | None = None
) -> Judging:
    """Judge on the device, and have everything the host needs copied at once. In C if the step is.

    Args:
        logits: [sum of (window + 1), vocabulary] float32, the target's, round by round.
        native, kernels: see ``sample``.

    Raises:
        MemoryError: C found no memory for a round's distributions. Else see ``forward``.
    """
    draws = [_draws(round) for round in rounds]
    if native:
        outcomes = _judge_in_c(logits, rounds, draws)
        return Judging(lambda: outcomes, None)
    samplings = [round.sequence.sampling for round in rounds for _ in range(round.window + 1)]
    kinds = [(it.window, _drawn(it), _has_q(it), it.sequence.sampling.logprobs) for it in rounds]
    # [rows, 3]; where all are greedy, nothing is drawn.
    u = None if all(one.greedy for one in samplings) else on_device(joined(draws), logits.device)
    # Where every verdict is drawn, the target's own tokens are not needed.
    chosen_by = None if u is None or all(kind[1] for kind in kinds) else u[:, CHOOSE]
    p, own = sample(logits, samplings, chosen_by, kernels=kernels)

    first_row, rows = [], 0
    for window, *_ in kinds:
        first_row.append(rows)
        rows += window + 1

    packed, sizes, order = [], [], sorted(range(len(rounds)), key=kinds.__getitem__)
    for (window, drawn, _, logprobs), members in groupby(order, key=kinds.__getitem__):
        indices = list(members)
        if len(indices) == len(rounds):  # all alike: their rows are already in order
            its = [every if every is None else every.unflatten(0, (len(rounds), window + 1)) for every in (p, u, own)]
        else:
            index = on_device(torch.tensor([first_row[i] for i in indices]), logits.device)[:, None]
            index = index + torch.arange(window + 1, device=logits.device)  # [S, window + 1]
            its = [every if every is None else every[index] for every in (p, u, own)]
        judged = _judge_alike(*its, [rounds[i].proposals for i in indices], drawn, logprobs)
        packed.append(judged.flatten())
        sizes += [judged.shape[1]] * len(indices)
    fetched = HostCopy(joined(packed))  # one tensor, one copy; float32 holds every token id exactly

    def outcomes() -> list[Outcome]:
        numbers, found = iter(fetched.tolist()), {}
        for i, size in zip(order, sizes, strict=True):
            u = draws[i][:, JUDGE].tolist() if kinds[i][1] else None
            found[i] = _outcome(list(islice(numbers, size)), rounds[i], u)
        return [found[i] for i in range(len(rounds))]

    return Judging(outcomes, own)


def _judge_in_c(logits: torch.Tensor, rounds: list[Round], draws: list[torch.Tensor]) -> list[Outcome]:
    samplings = [round.sequence.sampling for round in rounds]
    judged = in_c.judge(logits, samplings, [round.proposals for round in rounds], draws)
    outcomes = []
    for round, (accepted, next_token, p_next, p, q, around), u in zip(rounds, judged, draws, strict=True):
        tokens = round.proposals.tokens.tolist() if round.proposals else []
        drawn = u[:, JUDGE].tolist() if _drawn(round) else None
        outcomes.append(_outcome([*tokens, *p, *q, accepted, next_token, p_next, *around], round, drawn))
    return outcomes


def _draws(round: Round) -> torch.Tensor:
    """[window + 1, 3], the draws for the output positions that the round may fill."""
    first = round.sequence.generated
    return round.sequence.draws[first : first + round.window + 1]


def _drawn(round: Round) -> bool:
    """Whether verdicts are drawn; otherwise a proposal is kept if it is the target's own token."""
    return _has_q(round) and not round.sequence.sampling.greedy


def _has_q(round: Round) -> bool:
    return round.proposals is not None and round.proposals.q is not None


def _judge_alike(
    p: torch.Tensor,
    u: torch.Tensor | None,
    own: torch.Tensor,
    proposals: list[Proposals | None],
    drawn: bool,
    logprobs: int,
) -> torch.Tensor:
    """Judge S rounds with the same window g. Returns [S, numbers per round].

    The numbers are g proposals, their p, their q, the number accepted, the next token and its p, and what
    ``gather_around`` gives if ``logprobs`` are asked for.

    Args:
        p: [S, g + 1, vocabulary].
        u: [S, g + 1, 3]; None where nothing is drawn.
        own: [S, g + 1] int64, the target's tokens.
    """
    window = own.shape[1] - 1
    if not window:
        return torch.cat([torch.zeros_like(own), own, p[:, 0].gather(-1, own)], dim=1)
    tokens = torch.stack([some.tokens for some in proposals])
    q = None if proposals[0].q is None else torch.stack([some.q for some in proposals])
    q_proposed = torch.ones_like(p[:, :-1, 0]) if q is None else q.gather(-1, tokens[..., None])[..., 0]
    verdict = judge_sampled(p, q, tokens, u[:, :-1, JUDGE], u[..., CHOOSE]) if drawn else judge_matching(own, tokens)
    accepted, next_token = verdict
    p_proposed = p[:, :-1].gather(-1, tokens[..., None])[..., 0]
    p_next = row(p, accepted).gather(-1, next_token[:, None])
    numbers = [tokens, p_proposed, q_proposed, accepted[:, None], next_token[:, None], p_next]
    if logprobs:
        numbers.append(gather_around(p, q, tokens, verdict, logprobs, drawn))
    return torch.cat(numbers, dim=1)


def _outcome(numbers: list[float], round: Round, u: list[float] | None) -> Outcome:
    window = round.window
    tokens, p, q = numbers[:window], numbers[window : 2 * window], numbers[2 * window : 3 * window]
    accepted, next_token, p_next, *around = numbers[3 * window :]
    sound = next((i for i, value in enumerate(q) if not isfinite(value)), window)
    if accepted > sound:  # greedy: the target happens to agree with a broken draft
        accepted, next_token, p_next = sound, tokens[sound], p[sound]
    return Outcome(
        proposed=[int(token) for token in tokens[:sound]],
        p=p[:sound],
        q=q[:sound],
        u=u[:sound] if u else None,
        accepted=int(accepted),
        next_token=int(next_token),
        p_next=p_next,
        finite=all(isfinite(value) for value in (*p, p_next)),
        draft_finite=sound == window,
        around=read_around(around, window, int(accepted), has_q=_has_q(round), drawn=_drawn(round)) if around else [],
    )


def commit(sequence: Sequence, outcome: Outcome, token_text: Callable[[int], str]) -> None:
    """Add a step's tokens to the sequence and emit its events. Tokens after a stop are dropped; their verdicts are
    still emitted, since they were given."""
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
        if outcome.around:
            around = outcome.around[i]
            texts = tuple(map(token_text, around.token_ids))
            fields = {name: tuple(some) if isinstance(some, list) else some for name, some in around._asdict().items()}
            emit(Distributions, step=step, position=i, texts=texts, **fields)
    tokens = [*outcome.proposed[:accepted], outcome.next_token]
    pieces = []
    for token in tokens:
        pieces.append(sequence.append(token))
        if sequence.reason:
            break
    kept = len(pieces)
    own = Bonus if accepted == window else Recovered
    if window and kept == len(tokens):
        emit(
            own,
            step=step,
            position=accepted,
            token_id=outcome.next_token,
            text=token_text(outcome.next_token),
            p=outcome.p_next,
        )
    emit(
        Committed,
        step=step,
        token_ids=tuple(tokens[:kept]),
        origins=(*["accepted"] * accepted, own.kind if window else "plain")[:kept],
        pieces=tuple(pieces),
        probabilities=(*outcome.p[:accepted], outcome.p_next)[:kept],
        text="".join(pieces),
    )
