"""Captured steps without a GPU: a replay calls the captured function again, on the same tensors.

What is tested of them is mostly when something is computed and with which plan, not the kernels, which take Triton's
interpreter a hundred times as long as torch: so torch computes what the kernels compute, from the same plan.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lab import EngineConfig, Run, SamplingParams
from lab.backends.gpu import cuda_graphs as graphs
from lab.backends.gpu import paged_attention as attend_kernel
from lab.backends.gpu import store_kv as store_kernel
from lab.engine.engine import Engine
from lab.kv_cache.attention import _attend
from lab.kv_cache.attention_metadata import BlockPlan, Group
from lab.kv_cache.storage import LayerStorage
from lab.trace.events import FellBack
from tests import tiny_models

PAGED = EngineConfig(paged=True, block_size=4)
DRAFT = replace(PAGED, kv_dtype="int8", speculative="draft", num_speculative_tokens=3)
EARLY_EXIT = EngineConfig(speculative="early_exit", num_speculative_tokens=2)
SAMPLING = SamplingParams(max_tokens=5, ignore_eos=True)
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
    interpreted: bool = False,
    **settings: object,
) -> Engine:
    """An engine of a small model whose steps are captured. ``interpreted``: by the kernels themselves."""
    pretend_to_capture(monkeypatch, failing, error)
    if not interpreted:
        compute_in_torch(monkeypatch)
        settings |= {"fuse_layers": False}
    return tiny_models.engine("llama", "good", shape=SMALL, kernels="triton", **settings)


def pretend_to_capture(
    monkeypatch: pytest.MonkeyPatch, failing: dict[str, int] | None = None, error: Exception | None = None
) -> None:
    """From now on, engines with Triton's kernels capture their steps."""
    Again.made = []

    def stream(device: torch.device) -> Again:
        return Again(device, failing or {}, error or RuntimeError("no"))

    monkeypatch.setattr(graphs, "CaptureStream", stream)
    monkeypatch.setattr(graphs, "can_be_captured", lambda model: True)


def compute_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, torch stores and attends in place of the kernels. Fused layers have kernels of their own."""
    monkeypatch.setattr(store_kernel, "store", store)
    monkeypatch.setattr(attend_kernel, "attend", attend)


def store(layer: LayerStorage, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """As ``lab.backends.gpu.store_kv.store``."""
    real = slots >= 0
    layer.write(slots[real].long(), key[real], value[real])


def attend(
    layer: LayerStorage, query: torch.Tensor, plan: BlockPlan, scaling: float | None = None, *_: object
) -> torch.Tensor:
    """As ``lab.backends.gpu.paged_attention.attend``: what belongs to no sequence is not written."""
    out = torch.empty(query.shape)
    starts, lengths = plan.starts.tolist(), plan.lengths.tolist()
    for start, stop, length, table in zip(starts, starts[1:], lengths, plan.tables.long(), strict=False):
        if start == stop:
            continue
        places = torch.arange(length)
        slots = table[places // plan.block_size] * plan.block_size + places % plan.block_size
        keys, values = layer.read(slots)
        shared = query.shape[1] // keys.shape[1]
        seen = places <= torch.arange(length - (stop - start), length)[:, None]
        group = Group(rows=slice(start, stop), sequences=1, mask=seen.repeat(shared, 1)[None, None])
        out[start:stop] = _attend(query[start:stop].transpose(0, 1), keys, values, group, scaling)
    return out


def fell_back(run: Run) -> list[FellBack]:
    return [event for event in run.events if isinstance(event, FellBack)]
