"""The one place where a failed kernel falls back to torch, for C and for Triton alike."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lab.backends.interface import Backend, DraftTokens, HeadBackend, KernelError, LaunchedPass, PendingVerification
from lab.backends.torch.torch_backend import TorchBackend
from lab.kv_cache.block_table import BlockTable
from lab.trace.events import Part

log = logging.getLogger(__name__)


@dataclass(slots=True)
class KernelState:
    """Why kernels were given up, by a target and its draft together. None: they are in use."""

    failure: str | None = None

    def give_up(self, error: KernelError) -> None:
        log.warning("a kernel failed", exc_info=True)
        self.failure = str(error)


class FallbackBackend(Backend):
    """Computes by kernels until one fails, then by the reference. That memory ran out is no failure of a kernel.

    Args:
        kernels: makes the back end that may fail, and may fail itself.
        reference: computes the same.
    """

    def __init__(self, kernels: Callable[[], Backend], reference: TorchBackend, state: KernelState) -> None:
        self.model = reference.model
        self._kernels = self._reference = reference
        self._state = state
        if state.failure is None:
            try:
                self._kernels = kernels()
            except KernelError as error:
                state.give_up(error)
        self.reads_packed_weights = self._kernels.reads_packed_weights

    def _compute(self, method: str, *asked: Any) -> Any:
        if self._state.failure is None:
            try:
                return getattr(self._kernels, method)(*asked)
            except KernelError as error:
                self._state.give_up(error)
        return getattr(self._reference, method)(*asked)

    def forward(self, *asked: Any) -> torch.Tensor:
        return self._compute("forward", *asked)

    def draft(self, *asked: Any) -> list[DraftTokens]:
        return self._compute("draft", *asked)

    def sample(self, *asked: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self._compute("sample", *asked)

    def verify(self, *asked: Any) -> PendingVerification:
        return self._compute("verify", *asked)

    def keep_state(self, table: BlockTable) -> None:
        self._reference.keep_state(table)

    def first(self, layers: int) -> Backend:
        return FallbackBackend(lambda: self._kernels.first(layers), self._reference.first(layers), self._state)

    def head(self, kind: str) -> HeadBackend:
        return (self._kernels if self._state.failure is None else self._reference).head(kind, self.sample)

    def failures(self) -> dict[Part, str]:
        failed: dict[Part, str] = {"kernel": self._state.failure} if self._state.failure else {}
        return self._kernels.failures() | failed

    def launch_ahead(self, *asked: Any) -> LaunchedPass | None:
        return self._kernels.launch_ahead(*asked) if self.launches_ahead else None

    @property
    def launches_ahead(self) -> bool:
        return self._state.failure is None and self._kernels.launches_ahead

    @property
    def num_captured(self) -> int:
        return self._kernels.num_captured

    @property
    def capturing(self) -> str | None:
        return self._kernels.capturing

    def captures(self, *asked: Any) -> Iterator[tuple[str, Callable[[], None]]]:
        return self._kernels.captures(*asked)

    def try_again(self) -> None:
        self._kernels.try_again()

    def close(self) -> None:
        self._kernels.close()
