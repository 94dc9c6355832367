"""Sampling and rejection sampling in C: ``lab.backends.torch``'s ``sampler`` and ``rejection_sampler``."""

from collections.abc import Sequence
from ctypes import byref, c_void_p

import torch

from lab.backends.cpu.build import library
from lab.backends.cpu.cpu_count import threads
from lab.backends.cpu.structs import Choices, RoundStruct, Sampling, VerdictStruct
from lab.backends.interface import DraftRound, Verification
from lab.backends.torch.batched_verification import FIGURES, read_verification, top_size
from lab.backends.torch.rejection_sampler import METHODS
from lab.config import SamplingParams


def sample(
    logits: torch.Tensor, sampling: Sequence[SamplingParams], u: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample as ``lab.backends.torch.sampler.sample``, on a CPU. ``u`` is [rows].

    Raises:
        MemoryError: not enough for a row's sums.
    """
    rows, vocabulary = logits.shape
    logits, p = logits.contiguous(), torch.empty(rows, vocabulary, dtype=torch.float32)
    tokens = torch.empty(rows, dtype=torch.long)
    choices, _alive = described(sampling, u)
    given, made = c_void_p(logits.data_ptr()), (c_void_p(p.data_ptr()), c_void_p(tokens.data_ptr()))
    if library().sample(given, rows, vocabulary, None, byref(choices), *made, threads()):
        raise MemoryError("a row of sums does not fit in memory")
    return p, tokens


def described(sampling: Sequence[SamplingParams], u: torch.Tensor | None, each: int = 1) -> tuple[Choices, object]:
    """Sampling parameters for C, and the objects that must be kept alive until tokens are sampled.

    Args:
        sampling: one for the first ``each`` tokens, one for the next, and so on.
        u: as many float64 in [0, 1) as there are tokens.
    """
    rows, u = (Sampling * len(sampling))(*map(_as_struct, sampling)), None if u is None else u.contiguous()
    return Choices(rows, each, None if u is None else u.data_ptr()), (rows, u)


def verify(logits: torch.Tensor, rounds: Sequence[DraftRound]) -> list[Verification]:
    """Verify one round of each of several sequences: what ``lab.backends.torch.batched_verification`` gives for the
    distributions of ``sample``, to the last bit by the standard rule, and nearly so by others.

    Args:
        logits: [sum of (g + 1), vocabulary] float32, round by round.

    Raises:
        MemoryError: not enough for a round's distributions.
    """
    alive: list[object] = [logits := logits.contiguous()]
    p, q = torch.ones(2, len(logits), dtype=torch.float32)
    structs = (RoundStruct * len(rounds))()
    evidence, figures, top = [[torch.empty(0)] * len(rounds) for _ in range(3)]
    for i, (round, struct) in enumerate(zip(rounds, structs, strict=True)):
        struct.sampling, struct.u = _as_struct(round.sampling), _pointer(round.uniforms, alive)
        if round.top_tokens:
            top[i] = torch.zeros(top_size(round))
            struct.top_tokens, struct.top = round.top_tokens, _pointer(top[i], alive)
        if not round.draft:
            continue
        struct.num_draft_tokens, struct.draft_tokens = round.num_draft_tokens, _pointer(round.draft.token_ids, alive)
        struct.q = None if round.draft.q is None else _pointer(round.draft.q, alive)
        if round.is_sampled and round.method != "standard":
            evidence[i] = torch.zeros(2 * round.num_draft_tokens)
            struct.method, struct.evidence = list(METHODS).index(round.method), _pointer(evidence[i], alive)
        if round.sampling.logprobs:
            struct.logprobs = min(round.sampling.logprobs, logits.shape[1])
            figures[i] = torch.zeros(
                struct.num_draft_tokens * ((2 + 3 * struct.logprobs) * FIGURES + 1), dtype=torch.float32
            )
            struct.figures = _pointer(figures[i], alive)
    verdicts = (VerdictStruct * len(rounds))()
    given, made = c_void_p(logits.data_ptr()), (c_void_p(p.data_ptr()), c_void_p(q.data_ptr()))
    if library().verify(given, logits.shape[1], byref(structs), len(rounds), byref(verdicts), *made, threads()):
        raise MemoryError("a round's distributions do not fit in memory")
    p, q, first, found = p.tolist(), q.tolist(), 0, []
    for round, verdict, *more in zip(rounds, verdicts, evidence, figures, top, strict=True):
        tokens = round.draft.token_ids.tolist() if round.draft else []
        last = first + len(tokens)
        numbers = [*tokens, *p[first:last], *q[first:last], verdict.accepted, verdict.next_token, verdict.p_next]
        found.append(read_verification([*numbers, *(number for some in more for number in some.tolist())], round))
        first = last + 1
    return found


def _as_struct(sampling: SamplingParams) -> Sampling:
    return Sampling(sampling.temperature, sampling.top_k, sampling.top_p)


def _pointer(tensor: torch.Tensor, alive: list[object]) -> int:
    """The address of a tensor's contiguous numbers; ``alive`` keeps them until they have been read."""
    alive.append(tensor := tensor.contiguous())
    return tensor.data_ptr()
