"""Attention over cache slots, compared with attention over plain tensors."""

from __future__ import annotations

import pytest
import torch

from lab.backends.interface import NewTokens
from lab.backends.torch.torch_backend import TorchBackend
from lab.errors import ConfigError
from lab.kv_cache.block_pool import BlockPool
from lab.kv_cache.block_table import BlockTable
from lab.kv_cache.storage import KVStorage
from lab.models.language_model import LanguageModel
from tests import tiny_models
from tests.pairwise import parametrize_pairwise

LOGIT_ERROR = {"int8": 0.03, "fp8": 0.2, "fp8_per_token_head": 0.2}
LOGIT_ERROR |= {"int4": 0.5, "int4_per_token_head": 0.5, "turboquant_3bit_nc": 0.8}
"""Stated bound: root-mean-square logit error of a quantised cache, over the spread of the logits.
These tiny models have heads of 12 to 16 numbers; an INT8 scale spans 127 steps either way, an INT4 scale 7.5 or 8."""


def ignore(*_: object, **__: object) -> None:
    pass


def poisoned(model: LanguageModel, kv_format: str) -> KVStorage:
    """160 slots, whose contents must not matter before they are written."""
    shape = {"layers": model.layers, "kv_heads": model.kv_heads, "head_dim": model.head_dim}
    storage = KVStorage(kv_format, 160, **shape, dtype=model.dtype, device=model.device)
    for layer in storage.layers:
        for tensor in layer.tensors:
            tensor.fill_(torch.nan if tensor.is_floating_point() else 77)
    return storage


def run(lab, kv_format: str, paged: bool, chunks: list[int], tokens: torch.Tensor) -> torch.Tensor:
    """Logits of every token, computed chunk by chunk through a cache shared by two sequences."""
    model = lab.target
    pool, storage = BlockPool(num_blocks=40, block_size=4), poisoned(model, kv_format)
    tables = [BlockTable(pool, owner, ignore, paged=paged) for owner in range(2)]
    if not paged:
        for table in tables:
            table.allocate_slots(len(tokens))
    logits = [[], []]
    start = 0
    with torch.inference_mode():
        for chunk in chunks:
            batch = []
            for table in tables:  # two sequences in one packed forward; the second reads the tokens backwards
                table.allocate_slots(start + chunk)
                ids = tokens if table.owner == 0 else tokens.flip(0)
                batch.append(NewTokens(ids[start : start + chunk], start, table, keep=chunk))
            out = TorchBackend(model).forward(batch, storage)
            for rows, part in zip(logits, out.split(chunk), strict=True):
                rows.append(part)
            start += chunk
    return torch.stack([torch.cat(rows) for rows in logits])


def reference(lab, tokens: torch.Tensor) -> torch.Tensor:
    with lab.target.stock_attention() as model, torch.inference_mode():
        return torch.stack([model(ids[None]).logits[0] for ids in (tokens, tokens.flip(0))])


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("architecture", tiny_models.CONFIGS)
def test_packed_chunks_equal_a_dense_forward(architecture, paged):
    lab = tiny_models.engine(architecture)
    tokens = torch.randint(256, (30,), generator=torch.Generator().manual_seed(1))
    expected = reference(lab, tokens)
    for chunks in ([30], [1] * 30, [7, 1, 5, 1, 1, 15]):
        assert torch.allclose(run(lab, "auto", paged, chunks, tokens), expected, atol=1e-4, rtol=1e-4)


@parametrize_pairwise(kv_format=list(LOGIT_ERROR), paged=[False, True], architecture=list(tiny_models.CONFIGS))
def test_a_quantised_cache_is_within_the_stated_error(architecture, paged, kv_format):
    lab = tiny_models.engine(architecture)
    tokens = torch.randint(256, (30,), generator=torch.Generator().manual_seed(2))
    expected = reference(lab, tokens)
    if kv_format == "turboquant_3bit_nc" and lab.target.head_dim % 8:
        with pytest.raises(ConfigError, match="packs eight numbers"):
            run(lab, kv_format, paged, [30], tokens)
        return
    error = run(lab, kv_format, paged, [12, 1, 4, 13], tokens) - expected
    relative = (error.square().mean().sqrt() / expected.std()).item()
    assert 0 < relative < LOGIT_ERROR[kv_format]


def test_padding_beside_a_longer_sequence_does_not_matter():
    """Two lengths in one group, the slots after the shorter one never written: they hold NaN, and 0 x NaN is NaN."""
    lab = tiny_models.engine("llama")
    model, pool = lab.target, BlockPool(num_blocks=40, block_size=4)
    storage = poisoned(model, "auto")
    tokens = torch.randint(256, (14,), generator=torch.Generator().manual_seed(3))
    tables = [BlockTable(pool, owner, ignore, paged=True) for owner in range(2)]
    with torch.inference_mode():
        for table, length in zip(tables, (9, 14), strict=True):
            table.allocate_slots(length)
            TorchBackend(model).forward([NewTokens(tokens[: length - 1], 0, table, keep=0)], storage)
        last = [NewTokens(tokens[n - 1 : n], n - 1, table, keep=1) for table, n in zip(tables, (9, 14), strict=True)]
        out = TorchBackend(model).forward(last, storage)
        with model.stock_attention() as dense:
            expected = torch.stack([dense(tokens[None, :n]).logits[0, -1] for n in (9, 14)])
    assert torch.allclose(out, expected, atol=1e-4, rtol=1e-4)


def test_torch_does_not_prefer_cudnn() -> None:
    """Which would plan anew for every length of a text."""
    assert not torch.backends.cuda.cudnn_sdp_enabled()
