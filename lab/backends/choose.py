"""What computes a request's steps: the engine's kernels or torch, with or without CUDA graphs and compilation."""

from __future__ import annotations

import threading
from typing import Literal, get_args

import torch

from lab.backends.cpu.native_support import refusal
from lab.backends.gpu.cuda_graphs import can_be_captured
from lab.config import EngineConfig
from lab.errors import ConfigError
from lab.kv_cache.kv_cache import PoolSetting
from lab.models.devices import multiplies_bfloat16
from lab.models.language_model import LanguageModel

Kernel = Literal["triton", "c", "reference"]
KernelChoice = Literal["auto", "triton", "c", "reference"]
Models = tuple[LanguageModel, LanguageModel | None]


class Backends:
    """An engine's target and draft, and the other ways to compute them that a request can ask for.

    ``asked`` in the methods is a request's configuration or its pool's setting.

    Attributes:
        kernels: what computes a request with ``kernels="auto"``.
        cuda_graphs: whether its steps can be captured: with Triton's kernels, and each model whole on one GPU.
        target, draft: the models, computed by those kernels.

    Raises:
        ConfigError: the chosen kernels cannot run here.
    """

    def __init__(
        self, target: LanguageModel, draft: LanguageModel | None, kernels: KernelChoice, *, fuse_layers: bool = True
    ) -> None:
        self.kernels: Kernel = choose_kernels(kernels, target.device)
        self._by_torch: Models = target.by_torch(), draft and draft.by_torch()
        self._fuses = self.kernels == "triton" and fuse_layers
        self.target, self.draft = (target, draft) if self.kernels == "c" else self._by_torch
        if self._fuses:
            from lab.backends.gpu.fused_layer import fused

            self.target, self.draft = fused(self.target), self.draft and fused(self.draft)
        self._compiled: Models | None = None
        self._compiling = threading.Lock()
        self.prepare()
        if kernels == "c" and (reason := refusal(target) or target.native.failure):
            raise ConfigError(f"kernels='c' cannot compute {target.name}: {reason}. Use 'auto' or 'reference'.")
        self.cuda_graphs = self.kernels == "triton" and all(map(can_be_captured, self._models))

    def prepare(self) -> None:
        """Get the models ready: call before the first step, and after weights or adapters have changed."""
        with self._compiling:
            self._compiled = None
        if self.kernels == "c":
            for model in self._models:
                model.native.prepare(model)
        if self._fuses:
            from lab.backends.gpu.fused_layer import merge

            for model in self._models:
                merge(model)

    def weights_identity(self) -> tuple[int, ...]:
        return tuple(model.identity() for model in self._models)

    def models(self, asked: EngineConfig | PoolSetting) -> Models:
        """Target and draft, computed as asked. Compiling takes some seconds the first time."""
        if not asked.torch_compile:
            return self._by_torch if asked.kernels == "reference" else (self.target, self.draft)
        with self._compiling:
            if self._compiled is None:
                target, draft = self._by_torch
                self._compiled = target.as_compiled(), draft and draft.as_compiled()
            return self._compiled

    def by_triton(self, asked: EngineConfig | PoolSetting) -> bool:
        return self.kernels == "triton" and asked.kernels == "auto"

    def captures(self, asked: EngineConfig | PoolSetting) -> bool:
        """Whether steps with a cache are captured as CUDA graphs."""
        return self.cuda_graphs and asked.cuda_graphs and self.by_triton(asked)

    def refuse(self, asked: EngineConfig) -> None:
        """Raises ConfigError where compiling is asked for and there is nothing to compile."""
        if asked.torch_compile and asked.kernels == "auto" and self.target.native.model:
            raise ConfigError(
                "torch_compile=True compiles layers as torch computes them, and here a step in C computes them. Set "
                "kernels='reference' as well, or torch_compile=False."
            )

    @property
    def _models(self) -> list[LanguageModel]:
        return [model for model in (self.target, self.draft) if model]


def choose_kernels(choice: KernelChoice, device: torch.device) -> Kernel:
    """The kernels that compute a step on ``device``. "auto": Triton's on a GPU that has tensor cores for bfloat16, if
    Triton is installed; C on a CPU; otherwise the reference.

    Raises:
        ConfigError: no such choice, or kernels that cannot run on this device.
    """
    if choice not in get_args(KernelChoice):
        raise ConfigError(f"kernels must be one of {', '.join(map(repr, get_args(KernelChoice)))}, not {choice!r}.")
    if choice == "c" and device.type != "cpu":
        raise ConfigError(f"kernels='c' computes on a CPU, and the model is on {device}. Use 'triton' or 'auto'.")
    if choice in ("reference", "c"):
        return choice
    if choice == "auto" and device.type != "cuda":
        return "c" if device.type == "cpu" else "reference"
    if choice == "auto" and not multiplies_bfloat16(device):
        return "reference"
    try:
        from lab.backends.gpu.triton_interpreter import INTERPRETED
    except ImportError as error:
        if choice == "auto":
            return "reference"
        raise ConfigError(f"kernels='triton' needs the package triton, which cannot be imported ({error}).") from error
    if device.type != "cuda" and not INTERPRETED:
        raise ConfigError(
            f"kernels='triton' needs a GPU, and the model is on {device}. Use 'c', 'reference' or 'auto'; or set "
            "TRITON_INTERPRET=1 before the lab is imported, to run the kernels in Python, very slowly."
        )
    return "triton"
