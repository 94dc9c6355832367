"""The costs of caches: ``formats`` in quality, measured, and ``models`` in memory, by arithmetic (``lab.memory``)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from lab.measure.interval import Interval
from lab.measure.score import kv_errors
from lab.measure.workload import write
from lab.memory.capacity import Deployment, Lengths
from lab.memory.catalogue import GiB
from lab.memory.model_memory import known_models
from lessons.experiments.base import Experiment, Load, Measured, Name, Watch, Work

FORMATS = ("auto", "int8", "int4")
OF_FORMATS = {
    "key_error": "how far stored keys are off, as a share (Frobenius norms)",
    "value_error": "the same of values",
    "perplexity": "exp of the mean surprise",
    "perplexity_ratio": "of the perplexity with the model's own format",
    "kl": "nats a token that the next-token distribution moves by (KL divergence from that of the own format)",
}
OF_MODELS = {
    "name": "a word",
    "layers": "",
    "heads": "query heads",
    "kv_heads": "heads that have keys and values",
    "head_dim": "numbers of a head's key",
    "context_length": "most tokens that it was made for",
    "query_groups": "query heads that share a KV head",
    "parameters": "",
    "weight_bytes": "in bfloat16",
    "token_bytes": "of what all layers keep of a token: keys and values, or latents, in bfloat16",
    "token_bytes_float32": "in float32",
    "token_bytes_unshared": "in bfloat16, if every query head had a KV head of its own",
    "kept_bytes": "of a text of ``tokens`` tokens, in bfloat16: without blocks that slid out of a window, with states",
    "further_bytes": "that each further token of a long text adds",
    "state_bytes": "of its recurrent layers, in float32",
    "full_layers": "layers in which a token sees all before it",
    "window": "positions that a token sees in other layers with attention; 0 without such layers",
}


class Formats(Experiment):
    """``texts`` of ``tokens`` tokens each, drawn at temperature 1 and read in every format."""

    texts: int = Field(default=3, ge=1, le=10)
    tokens: int = Field(default=256, ge=8, le=1000)

    def names(self) -> Mapping[str, Any]:
        return dict.fromkeys(FORMATS, dict.fromkeys(OF_FORMATS))

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        engine = load("matched")
        watch(f"writing {self.texts} texts to read", 0.0)
        texts = write(engine, [self.tokens] * self.texts)
        windows = [engine.tokenizer(text)["input_ids"][: engine.context_length] for text in texts]
        yield
        watch(f"reading them in {len(FORMATS)} formats", 0.3)
        rows = kv_errors(engine, windows, lambda said: None, FORMATS)
        return Measured({row.kv_dtype: {name: _plain(getattr(row, name)) for name in OF_FORMATS} for row in rows})


def _plain(figure: float | Interval) -> float:
    """The figure without its interval, which is left to the bench."""
    return figure.value if isinstance(figure, Interval) else figure


class Models(Experiment):
    """Models of ``lab/memory/models.json`` and the embedded pair, under the lesson's own names."""

    arithmetic = True

    which: dict[Name, str] = Field(min_length=1)
    tokens: int = Field(default=4096, ge=1, le=1_000_000)

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
        return dict.fromkeys(self.which, dict.fromkeys(OF_MODELS))

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        yield
        return Measured({name: _of_model(key, self.tokens) for name, key in self.which.items()})


def _of_model(key: str, tokens: int) -> dict[str, Any]:
    model = known_models()[key]
    shape, layers = model.shape, model.shape.kv_layers
    text = Deployment(
        shape=shape,
        parameters=model.parameters,
        memory=GiB,
        lengths=Lengths(tokens, tokens),
        state_bytes=model.state_bytes,
    )
    computed = {
        "name": model.name,
        "parameters": model.parameters,
        "weight_bytes": 2 * model.parameters,
        "token_bytes": text.token_bytes,
        "token_bytes_float32": 2 * text.token_bytes,
        "token_bytes_unshared": sum(layers.values()) * shape.heads * shape.head_numbers * 2,
        "kept_bytes": text.sequence_bytes(tokens),
        "further_bytes": text.token_bytes * layers[None] / sum(layers.values()),
        "state_bytes": model.state_bytes,
        "full_layers": layers[None],
        "window": max(window or 0 for window in layers),
    }
    return {name: computed[name] if name in computed else getattr(shape, name) for name in OF_MODELS}
