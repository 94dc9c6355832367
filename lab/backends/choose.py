"""The one module that builds concrete back ends."""

import threading
from typing import get_args

import torch

from lab.backends.cpu.cpu_arithmetic import CpuArithmetic
from lab.backends.cpu.cpu_backend import CpuBackend
from lab.backends.cpu.native_model import NativeModel, native_step, refusal
from lab.backends.fallback import FallbackBackend, KernelState
from lab.backends.interface import Arithmetic, Backend, Backends, Kernel, KernelChoice
from lab.backends.torch.arithmetic import TorchArithmetic
from lab.backends.torch.torch_backend import TorchBackend
from lab.config import EngineConfig
from lab.errors import ConfigError
from lab.kv_cache.kv_cache import CacheConfig
from lab.kv_cache.storage import KERNEL_FORMATS
from lab.models.devices import multiplies_bfloat16
from lab.models.language_model import LanguageModel

Models = tuple[LanguageModel, LanguageModel | None]


class ModelBackends(Backends):
    """As ``Backends``, for models that are loaded.

    Raises:
        ConfigError: the chosen kernels cannot run here.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None = None,
        *,
        kernels: KernelChoice = "auto",
        fuse_layers: bool = True,
    ) -> None:
        self.kernels: Kernel = choose_kernels(kernels, target.device)
        self._plain: Models = target, draft
        if self.kernels == "triton" and (other := next((it for it in (target, draft) if it and it.other_cache), None)):
            if kernels == "triton":
                raise ConfigError(
                    f"kernels='triton' cannot compute {other.name}: {other.other_cache}. Use 'auto' or 'reference'."
                )
            self.kernels = "reference"
        self._fuses = self.kernels == "triton" and fuse_layers
        self.target, self.draft = target, draft
        if self._fuses:
            from lab.backends.gpu.fused_layer import fused

            self.target, self.draft = fused(target), draft and fused(draft)
        self._compiled: Models | None = None
        self._compiling = threading.Lock()
        self.prepare()
        if kernels == "c" and (reason := refusal(target) or self.failure):
            raise ConfigError(f"kernels='c' cannot compute {target.name}: {reason}. Use 'auto' or 'reference'.")
        self.cuda_graphs = False
        if self.kernels == "triton":
            from lab.backends.gpu.cuda_graphs import can_be_captured

            self.cuda_graphs = all(map(can_be_captured, self._models))

    def prepare(self) -> None:
        with self._compiling:
            self._compiled = None
        if self.kernels == "c":
            for model in self._models:
                native_step(model).prepare(model)
        if self._fuses:
            from lab.backends.gpu.fused_layer import merge

            for model in self._models:
                merge(model)

    @property
    def failure(self) -> str | None:
        return native_step(self.target).failure if self.kernels == "c" else None

    def weights_identity(self) -> tuple[int, ...]:
        return tuple(model.identity() for model in self._models)

    def create(self, asked: EngineConfig | CacheConfig) -> tuple[Backend, Backend | None]:
        cached = bool(asked.num_blocks) if isinstance(asked, CacheConfig) else asked.kv_cache
        state, graphs = KernelState(), None
        if cached and self.captures(asked):
            from lab.backends.gpu.cuda_graphs import Graphs

            graphs = Graphs()

        def backend(model: LanguageModel) -> Backend:
            reference = TorchBackend(model)
            if self._uses_c(asked, model):
                return FallbackBackend(lambda: CpuBackend(model), reference, state)
            if cached and self._uses_triton(asked):
                from lab.backends.gpu.gpu_backend import GpuBackend

                return FallbackBackend(lambda: GpuBackend(model, graphs), reference, state)
            return reference

        target, draft = self.models(asked)
        return backend(target), draft and backend(draft)

    def models(self, asked: EngineConfig | CacheConfig) -> Models:
        if not asked.torch_compile:
            return (self.target, self.draft) if _by_kernels(asked) else self._plain
        with self._compiling:
            if self._compiled is None:
                target, draft = self._plain
                self._compiled = target.as_compiled(), draft and draft.as_compiled()
            return self._compiled

    def product_dtype(self, asked: EngineConfig) -> torch.dtype:
        native = self._native(asked)
        return torch.bfloat16 if native and native.rounded else self.target.dtype

    def arithmetic(self, asked: EngineConfig) -> Arithmetic:
        if native := self._native(asked):
            return CpuArithmetic(native.weight_bytes, native.rounded)
        return TorchArithmetic(self.target.weight_bytes, self.target.device, self.target.dtype)

    def _native(self, asked: EngineConfig) -> NativeModel | None:
        """The target in C, if that computes the steps after the prompt. Without a cache every step reads a prompt, and
        torch's attention is called from layers that torch computes."""
        by_c = self._uses_c(asked, self.target) and (asked.kv_cache or asked.prefill_attention == "auto")
        return native_step(self.target).model if by_c else None

    def uses_kernels(self, asked: EngineConfig) -> bool:
        by_c = self._uses_c(asked, self.target) and native_step(self.target).model
        return bool(by_c or self._uses_triton(asked))

    def _uses_triton(self, asked: EngineConfig | CacheConfig) -> bool:
        return self.kernels == "triton" and _by_kernels(asked)

    def captures(self, asked: EngineConfig | CacheConfig) -> bool:
        return self.cuda_graphs and asked.cuda_graphs and self._uses_triton(asked)

    def refuse(self, asked: EngineConfig) -> None:
        by_c = self.kernels == "c" and native_step(self.target).model
        if asked.torch_compile and _by_kernels(asked) and by_c:
            raise ConfigError(
                "torch_compile=True compiles layers as torch computes them, and here a step in C computes them. Set "
                "kernels='reference' as well, or torch_compile=False."
            )

    def _uses_c(self, asked: EngineConfig | CacheConfig, model: LanguageModel) -> bool:
        """True if C computes the model, or would if it could be compiled."""
        if self.kernels != "c" or not _by_kernels(asked) or asked.torch_compile:
            return False
        step = native_step(model)
        return bool(step.model or step.failure)

    @property
    def _models(self) -> list[LanguageModel]:
        return [model for model in (self.target, self.draft) if model]


def _by_kernels(asked: EngineConfig | CacheConfig) -> bool:
    """True if kernels are asked for, and can read and write the format."""
    return asked.kernels == "auto" and asked.kv_dtype in KERNEL_FORMATS


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
        from lab.backends.gpu.launching import INTERPRETED
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
