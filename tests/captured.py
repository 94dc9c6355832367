"""Captured steps without a GPU: a replay calls the captured function again, on the same tensors."""

from __future__ import annotations

import pytest
import torch

from lab.decode import backends
from lab.decode.engine import Engine
from lab.kv import graphs
from tests import tiny_models

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
"""Small, since the interpreter runs one program per layer and KV head; an early exit needs two layers."""


class Again:
    """Stands in for ``graphs.CaptureStream``. ``failing``: the number of the call of ``record`` or of a replay that
    raises."""

    made: list[Again]

    def __init__(self, device: torch.device, failing: dict[str, int], error: Exception) -> None:
        self.failing, self.error = failing, error
        self.recorded = self.replayed = 0
        self.made.append(self)

    def record(self, run):
        self.recorded += 1
        if self.recorded == self.failing.get("record"):
            raise self.error
        output = run()

        def replay() -> None:
            self.replayed += 1
            if self.replayed == self.failing.get("replay"):
                raise self.error
            output.copy_(run())

        return replay, output


def captured_engine(
    monkeypatch: pytest.MonkeyPatch,
    *,
    failing: dict[str, int] | None = None,
    error: Exception | None = None,
    **settings: object,
) -> Engine:
    """An engine of a small model whose steps are captured."""
    pretend_to_capture(monkeypatch, failing, error)
    return tiny_models.engine("llama", "good", shape=SMALL, kernels="triton", **settings)


def pretend_to_capture(
    monkeypatch: pytest.MonkeyPatch, failing: dict[str, int] | None = None, error: Exception | None = None
) -> None:
    """From now on, engines with Triton's kernels capture their steps."""
    Again.made = []

    def stream(device: torch.device) -> Again:
        return Again(device, failing or {}, error or RuntimeError("no"))

    monkeypatch.setattr(graphs, "CaptureStream", stream)
    monkeypatch.setattr(backends, "can_be_captured", lambda model: True)
