"""From logits to distributions and tokens in C: ``lab.decode.sampling`` where nothing is cut off."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import byref, c_void_p

import torch

from lab.config import SamplingParams
from lab.native.build import library
from lab.native.cores import cores
from lab.native.structs import Sampling


def sample(
    logits: torch.Tensor, sampling: Sequence[SamplingParams], u: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``lab.decode.sampling.sample``, on a CPU and without top-k and top-p. ``u`` is [rows].

    Raises:
        MemoryError: too little for a row's sums.
    """
    rows, vocabulary = logits.shape
    logits, p, tokens = logits.contiguous(), torch.empty(rows, vocabulary), torch.empty(rows, dtype=torch.long)
    how, _kept = described(sampling, u)
    given, places = c_void_p(logits.data_ptr()), None
    made = c_void_p(p.data_ptr()), c_void_p(tokens.data_ptr())
    if library().sample(given, rows, vocabulary, places, byref(how), *made, min(torch.get_num_threads(), cores())):
        raise MemoryError("a row of sums does not fit in memory")
    return p, tokens


def described(sampling: Sequence[SamplingParams], u: torch.Tensor | None) -> tuple[Sampling, object]:
    """How tokens are chosen, for C; and what has to be kept until they are. ``u``: as many float64 in [0, 1)."""
    temperatures, u = array("f", [row.temperature for row in sampling]), None if u is None else u.contiguous()
    return Sampling(temperatures.buffer_info()[0], None if u is None else u.data_ptr()), (temperatures, u)
