"""The back end in C, for Llama-like models on a CPU."""

from collections.abc import Sequence

import torch

from lab.backends.cpu import native_sampler
from lab.backends.cpu.native_head import head_backend
from lab.backends.cpu.native_model import NativeModel, native_step
from lab.backends.interface import (
    Backend,
    DraftRound,
    DraftTokens,
    HeadBackend,
    KernelError,
    NewTokens,
    PendingVerification,
)
from lab.backends.torch.torch_backend import Sample, TorchBackend
from lab.config import SamplingParams
from lab.kv_cache.attention_metadata import SdpaChoice
from lab.kv_cache.storage import KVStorage
from lab.models.language_model import LanguageModel, Taps


class CpuBackend(TorchBackend):
    """A model whose steps C computes. Torch computes those that ask for one of its attention back ends.

    Args:
        native: shared with other back ends. None: the model's own, which has been prepared.

    Raises:
        KernelError: the step in C could not be compiled.
    """

    reads_packed_weights = True

    def __init__(self, model: LanguageModel, native: NativeModel | None = None) -> None:
        super().__init__(model)
        if native is None and (step := native_step(model)).model is None:
            raise KernelError(step.failure)
        self._native = native or step.model

    def forward(
        self,
        batch: Sequence[NewTokens],
        storage: KVStorage | None,
        sdpa: SdpaChoice = "auto",
        taps: Taps | None = None,
    ) -> torch.Tensor:
        if sdpa != "auto":
            return super().forward(batch, storage, sdpa, taps)
        tapped = (taps.layers, taps.states) if taps else ()
        return self._native.step(batch, self.model.layers, storage, *tapped)

    def draft(
        self,
        batch: Sequence[NewTokens],
        windows: Sequence[int],
        sampling: Sequence[SamplingParams],
        uniforms: Sequence[torch.Tensor],
        storage: KVStorage | None,
    ) -> list[DraftTokens]:
        if storage is None:
            return super().draft(batch, windows, sampling, uniforms, storage)
        return self._native.decode_ahead(batch, self.model.layers, storage, windows, sampling, uniforms)

    def sample(
        self, logits: torch.Tensor, sampling: Sequence[SamplingParams], u: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return native_sampler.sample(logits, sampling, u)

    def verify(self, logits: torch.Tensor, rounds: Sequence[DraftRound]) -> PendingVerification:
        verified = native_sampler.verify(logits, rounds)
        return PendingVerification(lambda: verified, None)

    def head(self, kind: str, sample: Sample | None = None) -> HeadBackend:
        return head_backend(self.model.heads[kind], sample or self.sample, self._native, self.model.context_length)

    def first(self, layers: int) -> Backend:
        return CpuBackend(self.model.first(layers), self._native)
