"""``formats``: what a KV format costs in quality, over texts that the target writes itself."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import Field

from lab.kv_cache.formats import FORMATS
from lab.measure.kv_error import kv_errors
from lab.measure.workload import write
from lessons.experiments.base import Experiment, Load, Measured, Watch, Work

FIGURES = {
    "key_error": "how far stored keys are off, as a share (Frobenius norms)",
    "value_error": "the same of values",
    "perplexity": "exp of the mean surprise",
    "perplexity_ratio": "of the perplexity with the model's own format",
    "kl": "nats a token that the next-token distribution moves by (KL divergence from that of the own format)",
}


class Formats(Experiment):
    """``texts`` of ``tokens`` tokens each, drawn at temperature 1 and read in every format."""

    texts: int = Field(default=3, ge=1, le=10)
    tokens: int = Field(default=256, ge=8, le=1000)

    def names(self) -> Mapping[str, Any]:
        return dict.fromkeys(FORMATS, dict.fromkeys(FIGURES))

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        engine = load("matched")
        watch(f"writing {self.texts} texts to read", 0.0)
        texts = write(engine, [self.tokens] * self.texts)
        windows = [engine.tokenizer(text)["input_ids"][: engine.context_length] for text in texts]
        yield
        watch(f"reading them in {len(FORMATS)} formats", 0.3)
        rows = kv_errors(engine, windows, lambda said: None)
        return Measured({row.kv_dtype: _plain(asdict(row)) for row in rows})


def _plain(row: dict[str, Any]) -> dict[str, float]:
    """The values without their intervals, which are left to the bench."""
    return {name: row[name]["value"] if isinstance(row[name], dict) else row[name] for name in FIGURES}
