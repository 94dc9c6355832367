"""How often a step crosses between host and device: each blocking crossing leaves a GPU waiting for the host.

The device is simulated: tensors that are created on it, copied to it, or computed from tensors on it are marked. Every
torch function is intercepted, and one that would wait for a GPU, or fail on it, is recorded.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from lab import EngineConfig, SamplingParams
from lab.backends.torch import batched_verification as outcome
from lab.backends.torch import sampler as sampling
from lab.backends.torch import torch_backend as forward
from lab.engine import core as pool
from lab.util import device_copy as transfer
from tests import tiny_models

READS = {
    torch.Tensor.item,
    torch.Tensor.tolist,
    torch.Tensor.cpu,
    torch.Tensor.numpy,
    torch.Tensor.nonzero,
    torch.Tensor.__bool__,
    torch.Tensor.__int__,
    torch.Tensor.__float__,
    torch.Tensor.__index__,
    torch.nonzero,
    torch.masked_select,
    torch.repeat_interleave,
    torch.Tensor.repeat_interleave,
}
"""Functions whose result, or its size, the host has to know."""


def is_there(value: object) -> bool:
    return getattr(value, "on_pretended_device", False)


def mark(value: object) -> None:
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            leaf.on_pretended_device = True


class Watch(TorchFunctionMode):
    """Records ``reads`` of results, copies to the device that block (``waits``), the dtype of those that do not
    (``brought``), and functions given tensors from both sides (``mixed``)."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.waits: list[str] = []
        self.brought: list[torch.dtype] = []
        self.mixed: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        name = getattr(func, "__name__", str(func))
        there = [is_there(tensor) for tensor in tensors]
        counts = any(there) or kwargs.get("device") is not None
        if any(there) and func in READS and not (name == "repeat_interleave" and isinstance(args[1], int)):
            self.reads.append(name)
        if name in ("tensor", "as_tensor") and kwargs.get("device") is not None:
            self.waits.append(name)
        if name == "__getitem__" and isinstance(args[1], list):
            self.waits.append("a list as an index")
        if any(there) and not all(there) and any(t.dim() for t, on in zip(tensors, there, strict=True) if not on):
            self.mixed.append(name)
        result = func(*args, **kwargs)
        if counts and func not in READS:
            mark(result)
        return result


@pytest.fixture
def watched(monkeypatch):
    """An engine, and a watch to step it under. What happens inside the models is not watched."""
    lab = tiny_models.engine("llama", "good", kernels="reference")
    watch = Watch()

    def brought(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
        assert not is_there(numbers)
        watch.brought.append(numbers.dtype)
        copy = numbers.clone()
        mark(copy)
        return copy

    for module in (transfer, forward, outcome, sampling):
        if hasattr(module, "on_device"):
            monkeypatch.setattr(module, "on_device", brought)
    assert pool.several_on_device is transfer.several_on_device

    for model in (lab.target, lab.draft):

        def compute(token_ids, positions, plan, keep, *, run=model.forward):
            assert all(map(is_there, (token_ids, positions, keep, plan.write)))
            with torch._C.DisableTorchFunction():
                logits = run(token_ids, positions, plan, keep)
            mark(logits)
            return logits

        monkeypatch.setattr(model, "forward", compute)
    return lab, watch


GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
CONFIGS = {
    "plain": EngineConfig(),
    "a draft": EngineConfig(paged=True, speculative="draft"),
    "block verification": EngineConfig(speculative="draft", rejection_sample_method="block"),
    "typical acceptance": EngineConfig(speculative="draft", rejection_sample_method="typical"),
    "a greedy draft": EngineConfig(speculative="draft", draft_sample_method="greedy"),
    "lookup": EngineConfig(paged=True, speculative="ngram", prompt_lookup_min=1),
    "an early exit": EngineConfig(speculative="early_exit"),
    "synthetic": EngineConfig(speculative="synthetic"),
}


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(
    "drawn",
    [{}, {"temperature": 0.8, "seed": 1}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 1}],
    ids=["greedy", "drawn", "top"],
)
def test_a_round_reads_from_the_device_once(watched, config, drawn):
    """Three sequences in a batch, greedy or sampled: one copy back per step, and no blocking copy to the device."""
    lab, watch = watched
    requests = [lab.submit("a b a b a b", config, sampling) for sampling in (GREEDY, replace(GREEDY, **drawn), GREEDY)]
    steps = 0
    with watch:
        while lab.step():
            steps += 1
    runs = [request.result() for request in requests]
    assert [run.reason for run in runs] == ["length"] * 3
    assert all(event.kind != "fell_back" for run in runs for event in run.events)
    assert watch.reads == ["tolist"] * steps
    assert watch.waits == []
    assert watch.mixed == []
