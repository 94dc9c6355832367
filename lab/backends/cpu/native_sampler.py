"""From logits to distributions and tokens, as in ``lab.backends.torch.sampler``, but in C."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_void_p

import torch

from lab.backends.cpu.build import library
from lab.backends.cpu.structs import Choices, Sampling
from lab.backends.cpu.threads import threads
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
    given, places = c_void_p(logits.data_ptr()), None
    made = c_void_p(p.data_ptr()), c_void_p(tokens.data_ptr())
    if library().sample(given, rows, vocabulary, places, byref(choices), *made, threads()):
        raise MemoryError("a row of sums does not fit in memory")
    return p, tokens


def described(sampling: Sequence[SamplingParams], u: torch.Tensor | None, each: int = 1) -> tuple[Choices, object]:
    """Sampling parameters for C, and the objects that must be kept alive until tokens are sampled.

    Args:
        sampling: one for the first ``each`` tokens, one for the next, and so on.
        u: as many float64 in [0, 1) as there are tokens.
    """
    rows, u = (Sampling * len(sampling))(*map(as_struct, sampling)), None if u is None else u.contiguous()
    return Choices(rows, each, None if u is None else u.data_ptr()), (rows, u)


def as_struct(sampling: SamplingParams) -> Sampling:
    """The part of ``sampling`` that C needs."""
    return Sampling(sampling.temperature, sampling.top_k, sampling.top_p)
