"""Rejection sampling in C: ``lab.backends.torch.rejection_sampler``, a round at a time."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_void_p
from typing import NamedTuple

import torch

from lab.backends.cpu.build import library
from lab.backends.cpu.native_sampler import as_struct
from lab.backends.cpu.structs import RoundStruct, VerdictStruct
from lab.backends.cpu.threads import threads
from lab.backends.interface import DraftRound
from lab.backends.torch.token_distributions import FIGURES


class NativeVerdict(NamedTuple):
    """A round's verdict, on the host: draft tokens accepted, the token after them, and their probabilities.

    Attributes:
        p, q: of each draft token. q is 1 for one that was not drawn from a distribution.
        figures: for ``lab.backends.torch.token_distributions.read_distributions``, if asked for.
    """

    accepted: int
    next_token: int
    p_next: float
    p: list[float]
    q: list[float]
    figures: list[float]


def verify(logits: torch.Tensor, rounds: Sequence[DraftRound]) -> list[NativeVerdict]:
    """Verify one round of each of several sequences. Verdicts and tokens are those of
    ``lab.backends.torch.rejection_sampler`` and ``lab.backends.torch.sampler`` to the last bit, given the distributions
    of ``lab.backends.cpu.native_sampler``.

    Args:
        logits: [sum of (g + 1), vocabulary] float32, round by round.

    Raises:
        MemoryError: not enough for a round's distributions.
    """
    alive: list[object] = [logits := logits.contiguous()]
    p, q = torch.ones(2, len(logits), dtype=torch.float32)
    structs, figures = (RoundStruct * len(rounds))(), [None] * len(rounds)
    for i, (round, its) in enumerate(zip(rounds, structs, strict=True)):
        its.sampling, its.u = as_struct(round.sampling), _pointer(round.uniforms, alive)
        if not round.draft:
            continue
        its.num_draft_tokens, its.draft_tokens = round.num_draft_tokens, _pointer(round.draft.token_ids, alive)
        its.q = None if round.draft.q is None else _pointer(round.draft.q, alive)
        if round.sampling.logprobs:
            its.logprobs = min(round.sampling.logprobs, logits.shape[1])
            figures[i] = torch.zeros(its.num_draft_tokens * ((2 + 3 * its.logprobs) * FIGURES + 1), dtype=torch.float32)
            its.figures = figures[i].data_ptr()
    verdicts = (VerdictStruct * len(rounds))()
    there = [c_void_p(part.data_ptr()) for part in (p, q)]
    if library().verify(
        c_void_p(logits.data_ptr()),
        logits.shape[1],
        byref(structs),
        len(rounds),
        byref(verdicts),
        *there,
        threads(),
    ):
        raise MemoryError("a round's distributions do not fit in memory")
    p, q, first, found = p.tolist(), q.tolist(), 0, []
    for round, verdict, some in zip(rounds, verdicts, figures, strict=True):
        last = first + round.num_draft_tokens
        its = verdict.accepted, verdict.next_token, verdict.p_next, p[first:last], q[first:last]
        found.append(NativeVerdict(*its, [] if some is None else some.tolist()))
        first = last + 1
    return found


def _pointer(tensor: torch.Tensor, alive: list[object]) -> int:
    """The address of a tensor's contiguous numbers; ``alive`` keeps them until they have been read."""
    alive.append(tensor := tensor.contiguous())
    return tensor.data_ptr()
