"""One greedy text alone, in a batch, and verified in rounds: which of its probabilities have the same bits."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from lab.config import EngineConfig
from lab.engine.engine import Engine
from lab.measure.measuring import finish
from lab.measure.workload import PlannedRequest, user_requests
from lab.trace.events import Committed
from lessons.experiments.base import Experiment, Load, Measured, Name, Part, Watch, Work

OF_COMPANY = {
    "tokens": "tokens of the text when it is written alone",
    "same_tokens": "of these, how many are the same before the first that differs",
    "same_bits": "of these, how many have a probability with the same bits, too",
    "off": "the largest relative difference of a probability",
}
Probabilities = list[tuple[int, float]]
"""The tokens of a text, each with the target's probability of it."""


class Beside(Part):
    """``batch``: requests in each step. The first is compared with itself alone, without draft tokens, by the same
    ``kernels``: "auto" for the lab's own, "reference" for PyTorch's."""

    batch: int = Field(default=1, ge=1, le=16)
    kernels: Literal["auto", "reference"] = "auto"
    speculative: Literal["off", "draft"] = "off"


class Company(Experiment):
    """Settings compared on one greedy text of ``tokens`` tokens."""

    settings: dict[Name, Beside] = Field(min_length=1, max_length=8)
    tokens: int = Field(default=48, ge=4, le=256)

    def names(self) -> Mapping[str, Any]:
        return dict.fromkeys(self.settings, dict.fromkeys(OF_COMPANY))

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        engine = load("matched")
        requests = user_requests(16, "equal", self.tokens, temperature=0.0, seed=1)
        found: dict[str, dict[str, float]] = {}
        alone: dict[str, Probabilities] = {}
        for place, (name, beside) in enumerate(self.settings.items()):
            if cancelled.is_set():
                return Measured({})
            watch(f"a batch of {beside.batch}", place / len(self.settings))
            if beside.kernels not in alone:
                alone[beside.kernels] = _first(engine, requests[:1], EngineConfig(kernels=beside.kernels))
                yield
            config = EngineConfig(kernels=beside.kernels, speculative=beside.speculative)
            found[name] = compared(alone[beside.kernels], _first(engine, requests[: beside.batch], config))
            yield
        return Measured(found)


def _first(engine: Engine, requests: Sequence[PlannedRequest], config: EngineConfig) -> Probabilities:
    """The first of the requests, all of which are decoded together."""
    runs, _ = finish(engine.clone(max_num_seqs=len(requests)), requests, config)
    committed = [event for event in runs[0].events if isinstance(event, Committed)]
    return [pair for event in committed for pair in zip(event.token_ids, event.probabilities, strict=True)]


def compared(alone: Probabilities, other: Probabilities) -> dict[str, float]:
    """The figures of a text that was written twice."""
    differs = (i for i, (one, two) in enumerate(zip(alone, other, strict=False)) if one[0] != two[0])
    same = next(differs, min(len(alone), len(other)))
    pairs = [(one[1], two[1]) for one, two in zip(alone[:same], other[:same], strict=True)]
    return {
        "tokens": len(alone),
        "same_tokens": same,
        "same_bits": sum(one == two for one, two in pairs),
        "off": max((abs(two - one) / one for one, two in pairs), default=0.0),
    }
