"""``models``: what known models' caches take. Arithmetic (``lab.memory``), not a measurement."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field, model_validator

from lab.kv_cache.formats import bytes_per_token
from lab.memory.model_memory import known_models
from lessons.experiments.base import Experiment, Load, Measured, Name, Watch, Work

FIGURES = {
    "name": "a word",
    "layers": "",
    "heads": "query heads",
    "kv_heads": "heads that have keys and values",
    "head_dim": "numbers of a head's key",
    "context_length": "most tokens that it was made for",
    "query_groups": "query heads that share a KV head",
    "parameters": "",
    "weight_bytes": "in bfloat16",
    "token_bytes": "keys and values of a token in all layers, in bfloat16",
    "token_bytes_float32": "in float32",
    "token_bytes_unshared": "in bfloat16, if every query head had a KV head of its own",
}


class Models(Experiment):
    """Models of ``lab/memory/models.json`` and the embedded pair, under the lesson's own names."""

    arithmetic = True

    which: dict[Name, str] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, given: Any) -> Any:
        return {"which": given} if isinstance(given, dict) and "which" not in given else given

    @model_validator(mode="after")
    def _known(self) -> Models:
        for key in self.which.values():
            if key not in known_models():
                raise ValueError(f"there is no model {key!r}; there are {', '.join(known_models())}.")
        return self

    def names(self) -> Mapping[str, Any]:
        return dict.fromkeys(self.which, dict.fromkeys(FIGURES))

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        yield
        return Measured({name: figures(key) for name, key in self.which.items()})


def figures(key: str) -> dict[str, Any]:
    """The figures of one model."""
    model = known_models()[key]
    shape = model.shape

    def token_bytes(kv_heads: int = shape.kv_heads, dtype: torch.dtype = torch.bfloat16) -> int:
        return bytes_per_token("auto", layers=shape.layers, kv_heads=kv_heads, head_dim=shape.head_dim, dtype=dtype)

    return {
        "name": model.name,
        "layers": shape.layers,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "context_length": shape.context_length,
        "query_groups": shape.query_groups,
        "parameters": model.parameters,
        "weight_bytes": 2 * model.parameters,
        "token_bytes": token_bytes(),
        "token_bytes_float32": token_bytes(dtype=torch.float32),
        "token_bytes_unshared": token_bytes(kv_heads=shape.heads),
    }
