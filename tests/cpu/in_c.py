"""What C computes, called as its counterpart in torch is."""

from __future__ import annotations

import torch

from lab import SamplingParams
from lab.backends.cpu import native_sampler, rejection
from lab.backends.interface import DraftRound, DraftTokens
from lab.backends.torch import sampler


def sample(
    logits: torch.Tensor, sampling: list[SamplingParams], u: torch.Tensor | None, *, native: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    return (native_sampler if native else sampler).sample(logits, sampling, u)


def verify(
    logits: torch.Tensor,
    sampling: list[SamplingParams],
    drafts: list[tuple[torch.Tensor, torch.Tensor | None] | None],
    uniforms: list[torch.Tensor],
) -> list[rejection.NativeVerdict]:
    drafts = [draft and DraftTokens(*draft) for draft in drafts]
    return rejection.verify(logits, list(map(DraftRound, sampling, drafts, uniforms)))
