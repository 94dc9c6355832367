"""The Memory page's inputs, and the deployment that they describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lab.memory.capacity import LONGEST, Deployment, Lengths
from lab.memory.catalogue import GPU_KEYS, GPUS, device_bytes
from lab.memory.model_memory import ModelInfo, known_models
from visualize.states import KV_FORMATS
from visualize.url_settings import Link

OTHER = "other"
WEIGHTS = {"float32": "FP32", "bfloat16": "BF16", "int8": "INT8", "int4": "INT4"}
"""``Deployment.weights`` in words."""


CHOICES: dict[str, dict[Any, str]] = {
    "model": {key: model.name for key, model in known_models().items()} | {OTHER: "Another, from the hub"},
    "weights": WEIGHTS,
    "kv_dtype": KV_FORMATS,
    "gpu": {key: name if name.endswith("GB") else f"{name} {GPUS[name]} GB" for key, name in GPU_KEYS.items()}
    | {OTHER: "Another"},
    "block_size": {size: str(size) for size in (1, 8, 16, 32, 128)},
}
"""For each input with a fixed choice of values, the values and what the page calls them."""
BOUNDS: dict[str, tuple[float, float]] = {
    "memory": (0.1, 100_000),
    "set_aside": (0, 90),
    "mean": (1, LONGEST),
    "longest": (1, LONGEST),
    "batch": (1, 1_000_000),
}


@dataclass(frozen=True)
class Inputs:
    """The page's controls, with their initial values.

    ``hub``: a hub id, if ``model`` is ``OTHER``. ``memory``: GiB, if ``gpu`` is ``OTHER``. ``set_aside``: percent.
    ``mean``, ``longest``: lengths in tokens. ``batch``: sequences whose cache is added up.
    """

    model: str = "llama-3.1-8b"
    hub: str = ""
    weights: str = "bfloat16"
    kv_dtype: str = "auto"
    gpu: str = "h100-80-gb"
    memory: float = 80.0
    set_aside: int = 10
    mean: int = 500
    longest: int = 4096
    batch: int = 32
    block_size: int = 16

    def deployment(self, model: ModelInfo) -> Deployment:
        """Raises ConfigError if a number makes no sense."""
        LINK.check(asked(self), LABELS)
        return Deployment(
            shape=model.shape,
            parameters=model.parameters,
            weights=self.weights,
            kv_dtype=self.kv_dtype,
            memory=gpu_bytes(self.gpu, self.memory),
            set_aside=self.set_aside / 100,
            lengths=Lengths(self.mean, self.longest),
            block_size=self.block_size,
        )


def gpu_bytes(gpu: str, memory: float) -> int:
    """Memory of the GPU that is chosen; the number beside it counts if it is another than those listed."""
    return device_bytes(gpu, memory if gpu == OTHER else None)


LABELS = {
    "model": "Model",
    "hub": "Hub id",
    "weights": "Weights",
    "kv_dtype": "KV format",
    "gpu": "GPU",
    "memory": "Memory, GiB",
    "set_aside": "Set aside, %",
    "mean": "Mean length",
    "longest": "Longest",
    "batch": "Sequences in a batch",
    "block_size": "Block size",
}
NAMES = tuple(field.name for field in fields(Inputs))
DEFAULTS = {field.name: field.default for field in fields(Inputs)}
LINK = Link(DEFAULTS, CHOICES, BOUNDS, {"hub": 200})


def asked(inputs: Any) -> dict[str, Any]:
    """A page's inputs by name, those that it hides at their defaults: nobody could correct them."""
    return vars(inputs) | ({} if inputs.gpu == OTHER else {"memory": DEFAULTS["memory"]})


def from_link(query: Mapping[str, str]) -> tuple[Inputs, list[str]]:
    """The inputs a link asks for, and a sentence for each value that was left out."""
    settings, notices = LINK.read(query)
    return Inputs(**settings), notices


def to_inputs(values: Sequence[Any]) -> Inputs:
    """The inputs from the controls' values."""
    return Inputs(**LINK.controls(values))
