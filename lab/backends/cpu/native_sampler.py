"""Sampling and rejection sampling in C: ``lab.backends.torch``'s ``sampler`` and ``rejection_sampler``."""

from collections.abc import Sequence
from ctypes import Array, addressof, byref, c_float, c_void_p
from itertools import chain

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
    rows, vocabulary = logits.shape
    p, q, structs = (c_float * rows)(), (c_float * rows)(), (RoundStruct * len(rounds))()
    written: list[list[Array[c_float]]] = [[] for _ in rounds]
    for round, struct, numbers in zip(rounds, structs, written, strict=True):
        struct.sampling, struct.u = _as_struct(round.sampling), _pointer(round.uniforms, alive)
        if draft := round.draft:
            struct.num_draft_tokens, struct.draft_tokens = round.num_draft_tokens, _pointer(draft.token_ids, alive)
            struct.q = None if draft.q is None else _pointer(draft.q, alive)
            if round.is_sampled and round.method != "standard":
                struct.method = list(METHODS).index(round.method)
                struct.evidence = _room(2 * struct.num_draft_tokens, numbers)
            if round.sampling.logprobs:
                struct.logprobs = min(round.sampling.logprobs, vocabulary)
                figures = (2 + 3 * struct.logprobs) * FIGURES + 1
                struct.figures = _room(struct.num_draft_tokens * figures, numbers)
        if round.top_tokens:
            struct.top_tokens, struct.top = round.top_tokens, _room(top_size(round), numbers)
    verdicts = (VerdictStruct * len(rounds))()
    made = byref(verdicts), byref(p), byref(q)
    if library().verify(c_void_p(logits.data_ptr()), vocabulary, byref(structs), len(rounds), *made, threads()):
        raise MemoryError("a round's distributions do not fit in memory")
    first, found = 0, []
    for round, verdict, more in zip(rounds, verdicts, written, strict=True):
        tokens = round.draft.token_ids.tolist() if round.draft else []
        last = first + len(tokens)
        numbers = [*tokens, *p[first:last], *q[first:last], verdict.accepted, verdict.next_token, verdict.p_next]
        found.append(read_verification([*numbers, *chain(*more)], round))
        first = last + 1
    return found


def _room(count: int, written: list[Array[c_float]]) -> int:
    """The address of room for ``count`` numbers, which is put behind what is ``written`` already."""
    written.append((c_float * count)())
    return addressof(written[-1])


def _as_struct(sampling: SamplingParams) -> Sampling:
    return Sampling(sampling.temperature, sampling.top_k, sampling.top_p)


def _pointer(tensor: torch.Tensor, alive: list[object]) -> int:
    """The address of a tensor's contiguous numbers; ``alive`` keeps them until they have been read."""
    alive.append(tensor := tensor.contiguous())
    return tensor.data_ptr()
