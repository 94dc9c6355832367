"""Part 3: kernels alone. Attention over long caches: formats, paged against contiguous, against SDPA. Attention over
short ones, split or not. Products."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from lab.backends.choose import choose_kernels
from lab.bench.gpu.device import clean_up, layer_seconds, layers_to_rotate
from lab.bench.gpu.products import format_products, time_products
from lab.bench.gpu.random_models import LLAMA_1B, LLAMA_8B, TINY_TARGET
from lab.bench.gpu.sheet import Sheet
from lab.kv_cache.attention_metadata import BlockPlan
from lab.kv_cache.formats import KVStorage, bytes_per_token
from lab.models.model_shape import ModelShape
from lab.util.device_memory import free_bytes

BLOCK_SIZE = 16
CONTEXTS = (32_768, 8_192, 1_024, 131_072)
"""The most informative ones first."""
BATCHES = (1, 8, 32)
COLUMNS = (("auto", "contiguous"), ("auto", "paged"), ("int8", "paged"), ("int4", "paged"), ("auto", "sdpa"))
"""Columns of the table: formats, and how the cache is laid out."""
SPLIT_CONTEXTS = (384, 128)
SPLITS = (1, 2, 4)
"""What ``attend_kernel.MOST_TILES`` was read from: whether a single short sequence is split."""
OTHERS = (("int8", "contiguous"), ("int4", "contiguous"))


def run_attention(sheet: Sheet, *, device: torch.device, dtype: torch.dtype, small: bool) -> None:
    """Fill ``cases``: microseconds of one layer's attention for one new token per sequence, and GB/s of keys, values
    and scales; and ``ratios``. The table's columns come first. A case that does not fit in half of the free memory is
    left out. Before them come the ``products`` and the ``splits`` (microseconds of one sequence's attention by the
    programs that share it), which take little time.

    Raises:
        ConfigError: the kernels cannot run here.
    """
    choose_kernels("triton", device)
    shape, contexts, batches, repeats = LLAMA_8B, CONTEXTS, BATCHES, 10
    if small:
        shape, contexts, batches, repeats = TINY_TARGET, (64,), (1, 2), 2
    for model, its_shape in (("tiny", shape),) if small else (("8B", LLAMA_8B), ("1B", LLAMA_1B)):
        time_products(sheet, model, its_shape, device, repeats)
    with sheet.attempt("splits"):
        time_splits(sheet, shape, device, dtype, contexts[:1] if small else SPLIT_CONTEXTS, repeats)
    clean_up(device)
    cases: list[dict] = []
    sheet.result |= {"cases": cases, "ratios": []}
    took = 0.0
    for kinds in (COLUMNS, OTHERS):
        for context in contexts:
            for batch in batches:
                case = f"{context:,} tokens x {batch}"
                for kv_format, blocks in kinds:
                    if not sheet.has_time(2 * took, f"{case}, and what comes after it"):
                        return
                    began = time.perf_counter()
                    with sheet.attempt(f"{case}, {kv_format} {blocks}"):
                        cases += time_case(shape, device, dtype, context, batch, kv_format, blocks, repeats)
                        sheet.result["ratios"] = ratios(cases)
                    clean_up(device)
                    took = time.perf_counter() - began
                sheet.say(f"  {case} done")


def time_splits(
    sheet: Sheet, shape: ModelShape, device: torch.device, dtype: torch.dtype, contexts: tuple[int, ...], repeats: int
) -> None:
    """Fill ``splits``, for one new token of one sequence in a paged cache."""
    rows = sheet.result["splits"] = []
    sizes = {"kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "dtype": dtype}
    query = torch.randn(1, shape.heads, shape.head_dim, dtype=dtype, device=device)
    for context in contexts:
        layers = layers_to_rotate(context * bytes_per_token("auto", layers=1, **sizes), device)
        storage = KVStorage("auto", context, layers=layers, device=device, **sizes)
        for splits in SPLITS:
            over, _ = _by_kernel(query, context, 1, storage, paged=True, splits=splits)
            seconds = layer_seconds(over, layers, device, repeats)
            rows.append({"context": context, "splits": splits, "microseconds": 1e6 * seconds})
    sheet.say("  splits done")


def time_case(
    shape: ModelShape,
    device: torch.device,
    dtype: torch.dtype,
    context: int,
    batch: int,
    kv_format: str,
    blocks: str,
    repeats: int,
) -> list[dict]:
    """``blocks``: the cache's layout; "sdpa" is torch's own attention over a contiguous one. Empty: it does not fit."""
    sizes = {"kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "dtype": dtype}
    read = context * batch * bytes_per_token(kv_format, layers=1, **sizes)
    if device.type == "cuda" and read > free_bytes(device) / 2:
        return []
    layers = layers_to_rotate(read, device)
    query = torch.randn(batch, shape.heads, shape.head_dim, dtype=dtype, device=device)
    if blocks == "sdpa":
        over = _by_sdpa(query, shape.kv_heads, context, batch, layers)
    else:
        storage = KVStorage(kv_format, context * batch, layers=layers, device=device, **sizes)
        over, tables = _by_kernel(query, context, batch, storage, paged=blocks == "paged")
        key, value = storage.layers[0].read(_slots(tables[0])[:context])
        _check(over(0)[0].float(), query[0].float(), key.float(), value.float())
        del key, value
    seconds = layer_seconds(over, layers, device, repeats)
    return [
        {
            "context": context,
            "batch": batch,
            "format": kv_format,
            "blocks": blocks,
            "microseconds": 1e6 * seconds,
            "gb_per_second": read / seconds / 1e9,
        }
    ]


def _by_kernel(
    query: torch.Tensor, context: int, batch: int, storage: KVStorage, *, paged: bool, splits: int | None = None
) -> tuple[Callable[[int], torch.Tensor], torch.Tensor]:
    """A layer's attention, and the table of blocks, [batch, height]. ``splits``: see ``attend``."""
    from lab.backends.gpu.paged_attention import attend

    for layer in storage.layers:
        for tensor in layer.tensors:
            _fill(tensor, query.shape[-1])
    height, device = -(-context // BLOCK_SIZE), query.device
    blocks = torch.randperm(batch * height) if paged else torch.arange(batch * height)
    plan = BlockPlan(
        write=torch.zeros(0, dtype=torch.int32, device=device),
        starts=torch.arange(batch + 1, dtype=torch.int32, device=device),
        lengths=torch.full((batch,), context, dtype=torch.int32, device=device),
        tables=blocks.view(batch, height).to(device, torch.int32),
        block_size=BLOCK_SIZE,
        longest_new=1,
        longest=context,
        storage=storage,
    )
    return lambda layer: attend(storage.layers[layer], query, plan, splits=splits), plan.tables


def _slots(blocks: torch.Tensor) -> torch.Tensor:
    """The slots of one sequence's blocks, in its order."""
    return (blocks[:, None].long() * BLOCK_SIZE + torch.arange(BLOCK_SIZE, device=blocks.device)).flatten()


def _check(out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Refuse a wrong result: of the first sequence, out and query [heads, d], key and value [context, kv_heads,
    d], all float32. Raises AssertionError if it is further off than rounding explains."""
    right = F.scaled_dot_product_attention(query[:, None], key.transpose(0, 1), value.transpose(0, 1), enable_gqa=True)
    off = ((out - right[:, 0]).abs().max() / right.abs().max()).item()
    if not off < 0.05:  # nor is it NaN
        raise AssertionError(f"the kernel's result is off by {off:.1%} of the largest number")


def _fill(tensor: torch.Tensor, head_dim: int) -> None:
    """Fill with numbers of a cache, or scales: not all zeros, which a GPU multiplies faster."""
    if tensor.is_floating_point():
        tensor.normal_() if tensor.shape[-1] == head_dim else tensor.uniform_(0.005, 0.02)
    elif tensor.dtype == torch.int8:
        tensor.random_(-127, 128)
    else:
        tensor.random_(0, 256)


def _by_sdpa(
    query: torch.Tensor, kv_heads: int, context: int, batch: int, layers: int
) -> Callable[[int], torch.Tensor]:
    stored = [
        torch.randn(2, batch, kv_heads, context, query.shape[-1], dtype=query.dtype, device=query.device)
        for _ in range(layers)
    ]
    return lambda layer: F.scaled_dot_product_attention(query[:, :, None], *stored[layer], enable_gqa=True)


def ratios(cases: list[dict]) -> list[dict]:
    """Times / those of the native contiguous cache, by context and batch."""
    by_key = {(c["context"], c["batch"], c["format"], c["blocks"]): c["microseconds"] for c in cases}
    return [
        {"context": context, "batch": batch, "format": kv_format, "blocks": blocks, "of_native": time / native}
        for (context, batch, kv_format, blocks), time in by_key.items()
        if (native := by_key.get((context, batch, "auto", "contiguous")))
    ]


def format_attention(result: dict) -> list[str]:
    lines = [f"{'context x batch: GB/s (time / native)':40}" + "".join(f"{f'{f} {b}':16}" for f, b in COLUMNS)]
    cases = result.get("cases", [])
    of_native = {(r["context"], r["batch"], r["format"], r["blocks"]): r["of_native"] for r in ratios(cases)}
    found = {(c["context"], c["batch"], c["format"], c["blocks"]): c for c in cases}
    for context, batch in sorted({key[:2] for key in found}):
        cells = ""
        for column in COLUMNS:
            case, ratio = found.get((context, batch, *column)), of_native.get((context, batch, *column))
            relative = f"({ratio:.2f})" if ratio else ""
            cells += f"{case['gb_per_second']:8.0f} {relative:7}" if case else f"{'-':>8}{'':8}"
        lines.append(f"{context:>10,} x {batch:<27}{cells}".rstrip())
    for context in dict.fromkeys(row["context"] for row in result.get("splits", ())):
        cells = (f"{r['splits']}: {r['microseconds']:.1f}" for r in result["splits"] if r["context"] == context)
        lines.append(f"{context:>10,} x 1, microseconds by splits: {'  '.join(cells)}")
    return lines + format_products(result)
