"""Heads in C draft what torch drafts: the same tokens, from the same distributions but for rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import Qwen3Config

from lab import SamplingParams
from lab.backends.cpu.cpu_backend import CpuBackend
from lab.backends.cpu.native_head import CpuBlockHead, CpuHead
from lab.backends.cpu.native_model import NativeModel, native_step
from lab.backends.interface import NewTokens
from lab.backends.torch.torch_backend import TorchBackend
from lab.kv_cache.block_pool import BlockPool
from lab.models.dflash_head import DFlashConfig, DFlashHead
from lab.models.dspark_head import DSparkConfig, DSparkHead
from lab.models.eagle3_head import Eagle3Config, Eagle3Head
from lab.models.language_model import LanguageModel
from lab.models.mtp_head import MiMoConfig, MTPHead, MTPLayers
from lab.models.state_head import StateHead
from tests.cpu.test_native import LLAMA, SHAPE, exact, storage_of, table

BLOCK = {"block_size": 6, "mask_token_id": 7}
KINDS = {
    "eagle3": (Eagle3Head, Eagle3Config, {"norm_before_residual": True}),
    "dflash": (DFlashHead, DFlashConfig, BLOCK),
    "dspark": (DSparkHead, DSparkConfig, BLOCK | {"markov_rank": 32}),
}
LAYERS = {"llama": LLAMA, "qwen3": Qwen3Config(**SHAPE), "mimo": MiMoConfig(**SHAPE)}
CASES = [(kind, name) for kind in KINDS for name in ("llama", "qwen3")] + [("mtp", "qwen3"), ("mtp", "mimo")]
WINDOWS = 5, 1, 3
GREEDY, DRAWN = SamplingParams(), SamplingParams(temperature=0.8)
SIZE = 8


def head_of(model: LanguageModel, kind: str) -> StateHead:
    """A random one, exact in bfloat16. All but an MTP head draft every other token of the vocabulary."""
    torch.manual_seed(2)
    if kind == "mtp":
        head = MTPHead(model.model, MTPLayers.of(model.model, weights=False), "mtp").requires_grad_(False)
        own = head.layer
    else:
        made, config, more = KINDS[kind]
        layer = model.model.config.to_dict() | {"num_hidden_layers": 1 if kind == "eagle3" else 2, "layer_types": None}
        layer = type(model.model.config).from_dict(layer)
        layer._attn_implementation = "decode_lab"
        sizes = {"layer": layer, "draft_vocab_size": 120, "target_hidden_size": 48, "target_layers": (0, 2)}
        head = made(config(**sizes, **more), torch.nn.Identity()).eval().requires_grad_(False)
        head.d2t += torch.arange(120)
        head.embed_tokens, own = model.model.get_input_embeddings(), head
    for weight in own.parameters():
        weight.copy_(weight.normal_(std=0.2).bfloat16().float() if weight.ndim == 2 else weight.normal_(1, 0.1))
    return head


def drafts_of_both(kind: str, name: str, sampling: tuple[SamplingParams, ...], kv_format: str = "auto"):
    """Each sequence's draft tokens, by torch and in C, over a cache in which some of its text is already."""
    model = LanguageModel(exact(LAYERS[name]), name)
    head = model.heads[kind] = head_of(model, kind)
    native_step(model).prepare(model)
    lag, found = int(kind in ("eagle3", "mtp")), []
    for backend in (TorchBackend(model), CpuBackend(model, NativeModel(model))):
        generator = torch.Generator().manual_seed(7)
        storage, pool = storage_of(head, kv_format, SIZE * 18), BlockPool(18, SIZE)
        computes, batch, states = backend.head(kind), [], []
        for known, unread in ((20, 3), (9, 1), (1, 14)):
            text = torch.randint(0, 257, (known + unread,), generator=generator)
            rows = torch.randn(known + unread, 1 + head.states_width, generator=generator)[:, 1:]  # among other layers'
            its = table(pool, SIZE * 6)
            if known > lag:
                before = NewTokens(text[lag:known], lag, its, 0)
                computes.read([before], [rows[: known - lag]], storage)
            batch.append(NewTokens(text[known:], known, its, 1))
            states.append(rows[known - lag : known + unread - 1])
        u = [torch.rand(window, generator=generator, dtype=torch.float64) for window in WINDOWS]
        found.append((computes, computes.draft(batch, states, WINDOWS, sampling, u, storage)))
    return found


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("kv_format", ["auto", "int8"])
@pytest.mark.parametrize("sampling", [(GREEDY,) * 3, (DRAWN, GREEDY, replace(DRAWN, temperature=1.2))])
@torch.inference_mode()
def test_a_head_drafts_in_c_what_it_drafts_in_torch(kind, name, kv_format, sampling):
    assert_same_drafts(drafts_of_both(kind, name, sampling, kv_format))


def assert_same_drafts(found):
    (_, expected), (computes, actual) = found
    assert isinstance(computes, (CpuHead, CpuBlockHead))
    for one, other, window in zip(expected, actual, WINDOWS, strict=True):
        assert other.token_ids.tolist() == one.token_ids.tolist()
        assert len(other.token_ids) == window
        assert (other.q - one.q).abs().sum(-1).max() < 0.01  # rounding may change a number's INT8
