"""Verdicts in C: ``lab.backends.torch.rejection_sampler``, a round at a time."""

from __future__ import annotations

from ctypes import byref, c_void_p
from typing import NamedTuple

import torch

from lab.backends.cpu.build import library
from lab.backends.cpu.native_sampler import as_struct
from lab.backends.cpu.structs import Round, Verdict
from lab.backends.cpu.threads import threads
from lab.config import SamplingParams

FIGURES = 4
"""For each token around a verdict: its id, p, q and residual probability (``token_distributions.h``)."""


class JudgedRound(NamedTuple):
    """A round's verdict, on the host: proposals kept, the token after them, and their probabilities.

    Attributes:
        p_next: of the token after them.
        p, q: of each proposal. q is 1 for one that was not drawn from a distribution.
        around: what ``lab.backends.torch.token_distributions.read_around`` reads, if asked for.
    """

    accepted: int
    next_token: int
    p_next: float
    p: list[float]
    q: list[float]
    around: list[float]


def judge(
    logits: torch.Tensor,
    samplings: list[SamplingParams],
    proposals: list[tuple[torch.Tensor, torch.Tensor | None] | None],
    u: list[torch.Tensor],
) -> list[JudgedRound]:
    """Judge one round of each of several sequences. Verdicts and tokens are those of
    ``lab.backends.torch.rejection_sampler`` and
    ``lab.backends.torch.sampler`` to the last bit, given the distributions of ``lab.backends.cpu.native_sampler``.

    Args:
        logits: [sum of (g + 1), vocabulary] float32, round by round.
        samplings: one per round.
        proposals: one per round: tokens [g] int64, and the [g, vocabulary] float32 they were drawn from, if they were.
        u: [g + 1, 3] float64 in [0, 1) per round: the columns of ``Sequence.draws``.

    Raises:
        MemoryError: not enough for a round's distributions.
    """
    alive: list[object] = [logits := logits.contiguous()]
    p, q = torch.ones(2, len(logits), dtype=torch.float32)
    rounds, around = (Round * len(u))(), [None] * len(u)
    for i, (sampling, proposed, draws) in enumerate(zip(samplings, proposals, u, strict=True)):
        round = rounds[i]
        round.sampling, round.u = as_struct(sampling), _pointer(draws, alive)
        if not proposed:
            continue
        tokens, drawn_from = proposed
        round.proposals, round.tokens = tokens.shape[0], _pointer(tokens, alive)
        round.q = None if drawn_from is None else _pointer(drawn_from, alive)
        if sampling.logprobs:
            round.logprobs = min(sampling.logprobs, logits.shape[1])
            figures = round.proposals * ((2 + 3 * round.logprobs) * FIGURES + 1)
            around[i] = torch.zeros(figures, dtype=torch.float32)
            round.around = around[i].data_ptr()
    verdicts = (Verdict * len(u))()
    there = [c_void_p(part.data_ptr()) for part in (p, q)]
    if library().judge(
        c_void_p(logits.data_ptr()),
        logits.shape[1],
        byref(rounds),
        len(u),
        byref(verdicts),
        *there,
        threads(),
    ):
        raise MemoryError("a round's distributions do not fit in memory")
    p, q, first, judged = p.tolist(), q.tolist(), 0, []
    for round, verdict, figures in zip(rounds, verdicts, around, strict=True):
        last = first + round.proposals
        its = verdict.accepted, verdict.next, verdict.p_next, p[first:last], q[first:last]
        judged.append(JudgedRound(*its, [] if figures is None else figures.tolist()))
        first = last + 1
    return judged


def _pointer(tensor: torch.Tensor, alive: list[object]) -> int:
    """The address of a tensor's contiguous numbers; ``alive`` keeps them until they have been read."""
    alive.append(tensor := tensor.contiguous())
    return tensor.data_ptr()
