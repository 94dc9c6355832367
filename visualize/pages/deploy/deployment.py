"""The Deploy page's inputs: models, the engine's settings, and the machine that is to serve them.

The inputs have the same names as in links to the Lab and the Memory page, so that settings found there carry over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from lab.config import EngineConfig
from lab.memory.model_memory import known_models
from lab.vllm.serve_command import TENSOR_PARALLEL
from visualize import memory_inputs as calculator
from visualize import run_settings as settings
from visualize.memory_inputs import OTHER
from visualize.url_settings import Link

NAMED = {key: model.name for key, model in known_models().items() if model.source.startswith("config.json of ")}
"""Models that a server elsewhere can find by their hub ids, so not this lab's own."""
CHOICES: dict[str, dict[Any, str]] = {
    "model": NAMED | {OTHER: "Another, by its name"},
    "draft_model": NAMED | {OTHER: "Another, by its name"},
    "weights": calculator.WEIGHTS,
    "gpu": calculator.CHOICES["gpu"],
    "tensor_parallel": {0: "Fewest", **{gpus: str(gpus) for gpus in TENSOR_PARALLEL}},
    **{name: settings.CHOICES[name] for name in ("speculative", "kv_dtype", "eviction")},
    "block_size": {size: str(size) for size in (1, 4, 8, 16, 32, 64, 128)},
}
BOUNDS = {name: calculator.BOUNDS[name] for name in ("memory", "set_aside", "mean", "longest")} | {
    "num_speculative_tokens": settings.BOUNDS["num_speculative_tokens"],
    "at_once": (1, 10_000),
    "max_num_batched_tokens": (64, 1_000_000),
}
LABELS = {name: calculator.LABELS[name] for name in ("weights", "gpu", "memory", "set_aside", "mean", "longest")} | {
    "model": "Target",
    "hub": "Target's name",
    "draft_model": "Draft",
    "draft_hub": "Draft's name",
    "speculative": "Speculation",
    "num_speculative_tokens": "Guesses a round",
    "kv_dtype": "KV format",
    "enable_prefix_caching": "Prefix caching",
    "block_size": "Block size",
    "tensor_parallel": "GPUs",
    "at_once": "Sequences at once",
    "max_num_batched_tokens": "Tokens in a step",
    "kv_cache": "KV cache",
    "paged": "Paged blocks",
    "adaptive_window": "Adaptive window",
    "eviction": "Eviction",
}


@dataclass(frozen=True)
class Inputs:
    """The page's controls, with their initial values. Controls that the Lab or the Memory page also has start with the
    values there, because those pages' links leave out defaults.

    ``hub``, ``draft_hub``: names of models other than the known ones. ``tensor_parallel`` 0: the fewest GPUs that hold
    ``at_once`` sequences. ``max_num_batched_tokens`` None: vLLM's choice.
    """

    model: str = calculator.DEFAULTS["model"]
    hub: str = ""
    weights: str = calculator.DEFAULTS["weights"]
    speculative: str = settings.DEFAULTS["speculative"]
    draft_model: str = "llama-3.2-1b"
    draft_hub: str = ""
    num_speculative_tokens: int = settings.DEFAULTS["num_speculative_tokens"]
    kv_dtype: str = settings.DEFAULTS["kv_dtype"]
    enable_prefix_caching: bool = settings.DEFAULTS["enable_prefix_caching"]
    block_size: int = settings.DEFAULTS["block_size"]
    gpu: str = calculator.DEFAULTS["gpu"]
    memory: float = calculator.DEFAULTS["memory"]
    set_aside: int = calculator.DEFAULTS["set_aside"]
    tensor_parallel: int = 0
    mean: int = calculator.DEFAULTS["mean"]
    longest: int = calculator.DEFAULTS["longest"]
    at_once: int = 64
    max_num_batched_tokens: int | None = None
    kv_cache: bool = settings.DEFAULTS["kv_cache"]
    paged: bool = settings.DEFAULTS["paged"]
    adaptive_window: bool = settings.DEFAULTS["adaptive_window"]
    eviction: str = settings.DEFAULTS["eviction"]

    def engine_config(self) -> EngineConfig:
        """The engine's settings as vLLM can have them: there is always a cache, in blocks."""
        return EngineConfig(
            kv_dtype=self.kv_dtype,
            paged=True,
            block_size=self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            eviction=self.eviction,
            speculative=self.speculative,
            num_speculative_tokens=self.num_speculative_tokens,
            adaptive_window=self.adaptive_window,
        )

    def check(self) -> None:
        """Raises ConfigError if a number makes no sense."""
        LINK.check(calculator.asked(self), LABELS)


NAMES = tuple(field.name for field in fields(Inputs))
DEFAULTS = {field.name: field.default for field in fields(Inputs)}
LINK = Link(DEFAULTS, CHOICES, BOUNDS, {"hub": 200, "draft_hub": 200}, ("max_num_batched_tokens",))


def from_link(query: Mapping[str, str]) -> tuple[Inputs, list[str]]:
    """The inputs a link asks for, and a sentence for each value that was left out."""
    found, notices = LINK.read(query)
    return Inputs(**found), notices


def to_inputs(values: Sequence[Any]) -> Inputs:
    """The inputs from the controls' values."""
    return Inputs(**LINK.controls(values))
