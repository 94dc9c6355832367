"""The one place where a failed kernel falls back to torch, for C and for Triton alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from lab.backends.interface import (
    Backend,
    DraftRound,
    DraftTokens,
    KernelError,
    LaunchedPass,
    NewTokens,
    PendingVerification,
)
from lab.config import EngineConfig, SamplingParams
from lab.kv_cache.attention_metadata import SdpaChoice
from lab.kv_cache.formats import KVStorage
from lab.kv_cache.kv_cache import KVCache
from lab.trace.events import Part

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class KernelState:
    """Why kernels were given up, by a target and its draft together. None: they are in use."""

    failure: str | None = None


class FallbackBackend(Backend):
    """Computes by kernels until one fails, then by the reference. That memory ran out is no failure of a kernel.

    Args:
        kernels: makes the back end that may fail, and may fail itself.
        reference: computes the same.
    """

    def __init__(self, kernels: Callable[[], Backend], reference: Backend, state: KernelState) -> None:
        self.model = reference.model
        self._reference, self._state = reference, state
        self._kernels = self._attempt(kernels) or reference
        self.reads_packed_weights = self._kernels.reads_packed_weights

    def _attempt(self, compute: Callable[[], T]) -> T | None:
        """The result of ``compute``; None if a kernel fails, and if one has failed before."""
        if self._state.failure is None:
            try:
                return compute()
            except KernelError as error:
                log.warning("a kernel failed", exc_info=True)
                self._state.failure = str(error)
        return None

    def forward(self, batch: Sequence[NewTokens], storage: KVStorage | None, sdpa: SdpaChoice = "auto") -> torch.Tensor:
        logits = self._attempt(lambda: self._kernels.forward(batch, storage, sdpa))
        return self._reference.forward(batch, storage, sdpa) if logits is None else logits

    def draft(
        self,
        batch: Sequence[NewTokens],
        windows: Sequence[int],
        sampling: Sequence[SamplingParams],
        uniforms: Sequence[torch.Tensor],
        storage: KVStorage | None,
    ) -> list[DraftTokens]:
        asked = batch, windows, sampling, uniforms, storage
        return self._attempt(lambda: self._kernels.draft(*asked)) or self._reference.draft(*asked)

    def sample(
        self, logits: torch.Tensor, sampling: Sequence[SamplingParams], u: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._attempt(lambda: self._kernels.sample(logits, sampling, u)) or self._reference.sample(
            logits, sampling, u
        )

    def verify(self, logits: torch.Tensor, rounds: Sequence[DraftRound]) -> PendingVerification:
        return self._attempt(lambda: self._kernels.verify(logits, rounds)) or self._reference.verify(logits, rounds)

    def first(self, layers: int) -> Backend:
        return FallbackBackend(lambda: self._kernels.first(layers), self._reference.first(layers), self._state)

    def failures(self) -> dict[Part, str]:
        failed: dict[Part, str] = {"kernel": self._state.failure} if self._state.failure else {}
        return self._kernels.failures() | failed

    def launch_ahead(self, batch: Sequence[NewTokens], storage: KVStorage) -> LaunchedPass | None:
        return self._kernels.launch_ahead(batch, storage) if self.launches_ahead else None

    @property
    def launches_ahead(self) -> bool:
        return self._state.failure is None and self._kernels.launches_ahead

    @property
    def num_captured(self) -> int:
        return self._kernels.num_captured

    @property
    def capturing(self) -> str | None:
        return self._kernels.capturing

    def captures(
        self, draft: Backend | None, cache: KVCache, config: EngineConfig, sequences: int, longest: int
    ) -> Iterator[tuple[str, Callable[[], None]]]:
        return self._kernels.captures(draft, cache, config, sequences, longest)

    def try_again(self) -> None:
        self._kernels.try_again()

    def close(self) -> None:
        self._kernels.close()
