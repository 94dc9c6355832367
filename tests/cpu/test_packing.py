"""How weights are packed for the step in C: in which order, in which memory, and anew when they change."""

from __future__ import annotations

import gc
import mmap
import weakref
from typing import ClassVar

import pytest
import torch
from torch import nn

from lab import SamplingParams
from lab.backends.cpu.native_model import NativeModel
from lab.backends.cpu.native_support import native_step
from lab.backends.cpu.structs import pack
from lab.backends.interface import NewTokens
from lab.models.language_model import LanguageModel
from tests.cpu.test_native import LLAMA, engines, exact, llama, native_llama


def test_changed_weights_are_packed_again():
    reference, native = engines()
    sampling = SamplingParams(max_tokens=6, ignore_eos=True)
    before = native.generate("The king", sampling=sampling).token_ids
    for engine in (reference, native):
        with torch.no_grad():
            weight = engine.target.model.model.layers[1].mlp.down_proj.weight
            weight.copy_((-weight).bfloat16().float())
    after = native.generate("The king", sampling=sampling)
    assert after.token_ids == reference.generate("The king", sampling=sampling).token_ids != before


def test_matrices_are_packed_in_blocks_padded_with_zeros():
    weight = torch.arange(40 * 6, dtype=torch.float32).view(40, 6)
    packed = pack(weight, 16)
    assert packed.shape == (2, 3, 32, 2)
    assert packed[0, 2, 3, 1] == weight[3, 5]
    assert packed[0, 2, 19, 0] == weight[19, 4].bfloat16()
    assert packed[1, 1, 7, 0] == weight[39, 2].bfloat16()
    assert not packed[1, :, 8:].any()


class Memory(mmap.mmap):
    """A mapping that is tracked for as long as it exists."""

    there: ClassVar[weakref.WeakSet[Memory]] = weakref.WeakSet()

    def __new__(cls, *arguments, **named):
        made = super().__new__(cls, *arguments, **named)
        cls.there.add(made)
        return made


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="pages are of one size here")
def test_the_memory_of_packed_weights_is_freed(monkeypatch):
    """When a model is deleted, and when changed weights are packed in their place."""
    monkeypatch.setattr("lab.backends.cpu.structs.mmap.mmap", Memory)
    model = LanguageModel(exact(LLAMA), "llama")
    native_step(model).prepare(model)
    (first,) = Memory.there
    matrices = [module.weight for module in model.model.modules() if isinstance(module, nn.Linear)]
    assert len(first) >= 2 * sum(weight.numel() for weight in matrices)
    del first
    with torch.no_grad():
        matrices[0].neg_()
    native_step(model).prepare(model)
    assert len(Memory.there) == 1
    del model
    gc.collect()
    assert not Memory.there


@pytest.mark.parametrize("system", ["has no large pages", "grants none", "grants no memory of its own"])
@torch.inference_mode()
def test_without_large_pages_weights_are_packed_into_ordinary_ones(monkeypatch, system):
    def refuse(*_, **__):
        raise OSError

    if system == "has no large pages":
        monkeypatch.delattr("lab.backends.cpu.structs.mmap.MADV_HUGEPAGE", raising=False)
        monkeypatch.delattr("lab.backends.cpu.structs.mmap.MAP_ANONYMOUS", raising=False)
    elif system == "grants none":
        monkeypatch.setattr(Memory, "madvise", refuse)
        monkeypatch.setattr("lab.backends.cpu.structs.mmap.mmap", Memory)
    else:
        monkeypatch.setattr("lab.backends.cpu.structs.mmap.mmap", refuse)
    batch = [NewTokens(torch.arange(9), 0, None, 9)]
    expected = native_llama().step(batch, llama().layers, None)
    assert torch.equal(NativeModel(llama()).step(batch, llama().layers, None), expected)
