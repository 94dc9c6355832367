"""Part 3: kernels alone. Attention over long caches: formats, paged against contiguous, against SDPA. Attention over
short ones, split or not. A layer's matrix products in a step of few rows, with the operations fused into them.
"""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from lab.backends.choose import choose_kernels
from lab.bench.gpu.random_models import LLAMA_1B, LLAMA_8B, TINY_TARGET
from lab.bench.gpu.sheet import Sheet, clean_up, layer_seconds, layers_to_rotate
from lab.kv_cache.attention_metadata import BlockPlan
from lab.kv_cache.storage import KVStorage, bytes_per_token
from lab.models.model_shape import ModelShape
from lab.util.device_memory import free_bytes

BLOCK_SIZE = 16
CONTEXTS = (1_024, 8_192, 32_768, 131_072)
BATCHES = (1, 8, 32)
COLUMNS = (("auto", "contiguous"), ("auto", "paged"), ("int8", "paged"), ("int4", "paged"), ("auto", "sdpa"))
"""Columns of the table: formats, and how the cache is laid out; "sdpa" is torch's attention over a contiguous one."""
SPLIT_CONTEXTS, SPLITS = (384, 128), (1, 2, 4)
"""What ``attend_kernel.MOST_TILES`` was read from: whether a single short sequence is split."""
ROWS = (1, 5, 16)
"""Of the products."""
EPSILON = 1e-5
ByLayer = Callable[[int], torch.Tensor]
"""Computes a layer, given by its number."""


def run_attention(sheet: Sheet, *, device: torch.device, dtype: torch.dtype, small: bool) -> None:
    """Fill ``cases``: microseconds of one layer's attention for one new token per sequence, and GB/s of keys, values
    and scales. A case that does not fit in half of the free memory is left out. Before them come the ``products`` and
    the ``splits`` (microseconds of one sequence's attention by the programs that share it), which take little time.
    Raises ConfigError: the kernels cannot run here."""
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
    sheet.result["cases"] = cases
    for context in contexts:
        for batch in batches:
            case = f"{context:,} tokens x {batch}"
            for kv_format, blocks in COLUMNS:
                with sheet.attempt(f"{case}, {kv_format} {blocks}"):
                    cases += time_case(shape, device, dtype, context, batch, kv_format, blocks, repeats)
                clean_up(device)
            sheet.say(f"  {case} done")


# -- attention -------------------------------------------------------------------------------


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
    """``blocks``: see ``COLUMNS``. Empty: it does not fit. Raises AssertionError: a kernel's result is wrong."""
    sizes = {"kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "dtype": dtype}
    read = context * batch * bytes_per_token(kv_format, layers=1, **sizes)
    if device.type == "cuda" and read > free_bytes(device) / 2:
        return []
    layers = layers_to_rotate(read, device)
    query = torch.randn(batch, shape.heads, shape.head_dim, dtype=dtype, device=device)
    if blocks == "sdpa":
        stored = [query.new_empty(2, batch, shape.kv_heads, context, shape.head_dim).normal_() for _ in range(layers)]

        def over(layer: int) -> torch.Tensor:
            return F.scaled_dot_product_attention(query[:, :, None], *stored[layer], enable_gqa=True)
    else:
        storage = KVStorage(kv_format, context * batch, layers=layers, device=device, **sizes)
        over, tables = _by_kernel(query, context, batch, storage, paged=blocks == "paged")
        slots = (tables[0][:, None].long() * BLOCK_SIZE + torch.arange(BLOCK_SIZE, device=device)).flatten()
        _check(over(0)[0].float(), query[0].float(), *(x.float() for x in storage.layers[0].read(slots[:context])))
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
) -> tuple[ByLayer, torch.Tensor]:
    """A layer's attention, and the table of blocks, [batch, height]. ``splits``: see ``attend``."""
    from lab.backends.gpu.paged_attention import attend

    for layer in storage.layers:
        for tensor in layer.tensors:  # not all zeros, which a GPU multiplies faster
            if not tensor.is_floating_point():
                tensor.random_(*((-127, 128) if tensor.dtype == torch.int8 else (0, 256)))
            elif tensor.shape[-1] == query.shape[-1]:
                tensor.normal_()
            else:  # scales
                tensor.uniform_(0.005, 0.02)
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


def _check(out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Refuse a wrong result: of the first sequence, out and query [heads, d], key and value [context, kv_heads,
    d], all float32. Raises AssertionError if it is further off than rounding explains."""
    right = F.scaled_dot_product_attention(query[:, None], key.transpose(0, 1), value.transpose(0, 1), enable_gqa=True)
    off = ((out - right[:, 0]).abs().max() / right.abs().max()).item()
    if not off < 0.05:  # nor is it NaN
        raise AssertionError(f"the kernel's result is off by {off:.1%} of the largest number")


# -- products --------------------------------------------------------------------------------


def time_products(sheet: Sheet, model: str, shape: ModelShape, device: torch.device, repeats: int) -> None:
    """Add to ``products``: microseconds, and GB/s of the matrix, by the lab's kernels and by torch's, in bfloat16,
    which the lab's require."""
    found = sheet.result.setdefault("products", [])
    attended = shape.heads * shape.head_dim
    for name, kind, outputs, inputs in (
        ("norm; query, key and value", "normed", attended + 2 * shape.kv_heads * shape.head_dim, shape.hidden_size),
        ("attention's output, added", "added", shape.hidden_size, attended),
        ("norm; gate and up; SwiGLU", "gated", 2 * shape.intermediate_size, shape.hidden_size),
        ("down, added", "added", shape.hidden_size, shape.intermediate_size),
    ):
        with sheet.attempt(f"{model}: {name}"):
            read = inputs * outputs * torch.bfloat16.itemsize
            layers = layers_to_rotate(read, device)
            matrices = torch.randn(layers, outputs, inputs, dtype=torch.bfloat16, device=device) / inputs**0.5
            for rows in ROWS:
                ways = dict(zip(("lab", "torch"), _ways(kind, matrices, rows), strict=True))
                ours, theirs = (over(0).float() for over in ways.values())
                torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02 * theirs.abs().max().item())
                for by, over in ways.items():
                    seconds = layer_seconds(over, layers, device, repeats)
                    row = {"model": model, "product": name, "rows": rows, "by": by, "microseconds": 1e6 * seconds}
                    found.append(row | {"gb_per_second": read / seconds / 1e9})
        matrices = ways = over = None
        clean_up(device)
    sheet.say(f"  products of {model} done")


def _ways(kind: str, matrices: torch.Tensor, rows: int) -> tuple[ByLayer, ByLayer]:
    """The lab's implementation, and torch's."""
    from lab.backends.gpu.fused_kernels import rms_norm, swiglu
    from lab.backends.gpu.fused_product import add_product, gated_product, normed_product

    x, norm = matrices.new_ones(rows, matrices.shape[-1]), matrices.new_ones(matrices.shape[-1])
    to, other = matrices.new_zeros(2, rows, matrices.shape[-2])

    def by_torch(layer: int) -> torch.Tensor:
        return F.linear(rms_norm(x, norm, EPSILON), matrices[layer])

    return {
        "normed": (lambda layer: normed_product(x, norm, EPSILON, matrices[layer], None), by_torch),
        "gated": (
            lambda layer: gated_product(x, norm, EPSILON, matrices[layer]),
            lambda layer: swiglu(by_torch(layer)),
        ),
        "added": (
            lambda layer: add_product(to, x, matrices[layer]),
            lambda layer: other.addmm_(x, matrices[layer].t()),
        ),
    }[kind]
