"""A model's step in C: which models have one, how many of their weights it copies, and when it is ready."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedConfig

from lab.backends.cpu.build import BuildError
from lab.backends.cpu.native_model import NativeModel
from lab.models.language_model import LanguageModel
from lab.models.llama_family import unlike_llama, unlike_llama_config
from lab.models.model_shape import ModelShape
from lab.models.quantization import quantization_method

MOST_LANES = 16
"""Float32 numbers in the longest vector register there is."""


class NativeStep:
    """A model's step in C, once it is ready.

    Attributes:
        model: None: it is not ready yet, or cannot compute this model.
        failure: why it could not be compiled, for a model that it could compute.
    """

    def __init__(self) -> None:
        self.model: NativeModel | None = None
        self.failure: str | None = None
        self._identity: int | None = None
        self._lock = threading.Lock()

    def prepare(self, model: LanguageModel) -> None:
        """Compile and pack, unless that is done. Takes a second, or a few the first time on a machine."""
        with self._lock:
            if self._identity == (identity := model.identity()):
                return
            self._identity, self.model, self.failure = None, None, None
            if not refusal(model):
                try:
                    self.model = NativeModel(model, rounded=model.rounded)
                except BuildError as error:
                    self.failure = f"Torch computes the steps, several times slower: {error}."
            self._identity = identity


_steps: WeakKeyDictionary[LanguageModel, NativeStep] = WeakKeyDictionary()


def native_step(model: LanguageModel) -> NativeStep:
    """The step in C of a model, which all engines share that compute it."""
    return _steps.setdefault(model, NativeStep())


def refusal(model: LanguageModel) -> str | None:
    """The reason why ``step.c`` cannot compute this model, in a sentence; None if it can."""
    inner = model.model
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return f"it computes float32 on a CPU, and this model is {model.dtype} on {model.device.type}"
    if different := unlike_llama(model):
        return different
    if model.padding:
        return "its vocabulary is made as wide as another model's"
    if different := _unlike_config(inner.config):
        return different
    linears = [module for module in inner.modules() if isinstance(module, nn.Linear)]
    if any(not torch.equal(module.weight, module.weight.bfloat16().float()) for module in linears):
        return "its matrices hold more digits than bfloat16 can"
    return None


def packed_parameters(config: PreTrainedConfig, parameters: int) -> int:
    """Number of a model's ``parameters`` that the step in C copies into bfloat16 (``NativeModel``) if it is loaded in
    float32: all but an embedding table that is not the head too. (Norms and biases are not copied either, but are few.)
    0: the configuration describes a model that it cannot compute, or weights stored in another dtype than bfloat16.
    """
    refused = unlike_llama_config(config) or _unlike_config(config) or quantization_method(config)
    if refused or config.dtype not in (None, torch.bfloat16):
        return 0
    shape = ModelShape.from_config(config)
    return parameters - (0 if shape.tied else shape.vocabulary * shape.hidden_size)


def _unlike_config(config: PreTrainedConfig) -> str | None:
    """The reason why a configuration of Llama's layers describes a model that ``step.c`` cannot compute."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in ("default", "linear", "llama3", "yarn"):
        return f"its rotary embedding changes with the length ({rope['rope_type']})"
    shape = ModelShape.from_config(config)
    if any(size % MOST_LANES for size in (shape.hidden_size, shape.intermediate_size, shape.head_dim)):
        return f"its hidden, intermediate and head sizes are not multiples of {MOST_LANES}"
    return None
