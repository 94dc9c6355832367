"""The Memory page's answer as JSON for its script: numbers, the formula with the numbers in it, charts."""

from collections import Counter
from dataclasses import replace
from typing import Any

from lab.kv_cache.storage import FORMATS, formats_for
from lab.memory.capacity import Deployment
from lab.memory.catalogue import TABLE_BITS, WEIGHT_BITS, GiB
from lab.memory.model_memory import ModelInfo, deployment_notices, kept_by_layers
from lab.settings import KV_DTYPES
from lab.util.messages import counted
from visualize.charts import memory_charts as memory
from visualize.charts.base import drawn
from visualize.charts.memory_charts import size
from visualize.format_numbers import digits
from visualize.memory_inputs import WEIGHTS


def sheet(model: ModelInfo, chosen: Deployment, batch: int) -> dict[str, Any]:
    """Everything that the page shows about a deployment. Texts are plain: the page sets them as text."""
    others = in_every_format(chosen)
    charts = drawn(memory.columns(chosen, others))
    if chosen.cache_bytes < 0:
        _overflow(chosen, charts["split"])
    return {
        "about": about(model),
        "notice": " ".join(deployment_notices(model, chosen, size)),
        "kept": " ".join(kept_by_layers(model, size)),
        "source": f"Numbers of {model.name}: {model.source}.",
        "readouts": readouts(chosen, batch),
        "formula": formula(chosen, batch),
        "charts": charts,
    }


def in_every_format(chosen: Deployment) -> dict[str, Deployment]:
    """The deployment in each KV format that the model's heads allow (INT4 needs an even number)."""
    return {kv_dtype: replace(chosen, kv_dtype=kv_dtype) for kv_dtype in formats_for(chosen.shape.head_dim)}


def about(model: ModelInfo) -> str:
    """A sentence on the model and how its heads share keys and values."""
    shape = model.shape
    queries = counted(shape.heads, "query head")
    heads = f"{queries}, each with a KV head of {shape.head_dim} numbers (MHA)"
    if shape.sharing == "MLA":
        less = shape.heads * shape.head_numbers / shape.head_dim
        heads = f"{queries} on one latent of {shape.head_dim} numbers (MLA: 1/{digits(less)} of the cache of MHA)"
    elif shape.query_groups > 1:
        heads = (
            f"{queries} on {counted(shape.kv_heads, 'KV head')} of {shape.head_dim} numbers ({shape.sharing}: "
            f"1/{shape.query_groups} of the cache of MHA)"
        )
    if shape.full_attention:
        heads += ", or on {} of {} in layers that see all".format(*shape.full_attention)
    return (
        f"{model.name}: {counted(shape.layers, 'layer')}, {heads}, {model.parameters / 1e9:.3g} billion parameters, "
        f"context {shape.context_length:,}."
    )


def readouts(chosen: Deployment, batch: int) -> list[dict[str, str]]:
    """The numbers above the charts."""
    token, lengths = chosen.token_bytes, chosen.lengths
    contiguous, paged = (chosen.sequences(policy) for policy in ("contiguous", "paged"))
    times = f", {digits(paged / contiguous)}×" if contiguous else ""
    rows = [
        ("KV per token", size(token), "", "Keys, values and scales of one token, in all layers that keep it."),
        (
            "mean sequence",
            size(chosen.mean_bytes),
            f"longest {size(chosen.sequence_bytes(lengths.longest))}",
            "KV of a sequence, and its recurrent state if it has one.",
        ),
        (
            f"batch of {batch:,}",
            size(batch * chosen.mean_bytes),
            "",
            "KV of a batch of sequences of the mean length.",
        ),
        (
            "weights",
            size(chosen.weight_bytes),
            "",
            "Parameters times bytes each. Where they are quantised, the embedding table and the head are not, as with "
            "AWQ and GPTQ; scales are left out.",
        ),
        (
            "left for KV",
            size(chosen.cache_bytes),
            f"of {size(chosen.memory)}",
            "The device's memory minus what is reserved and the weights. Below 0: that much is missing.",
        ),
        ("contiguous", f"{contiguous:,}", "requests", "Sequences at once when each reserves room for the longest."),
        (
            "paged",
            f"{paged:,}",
            f"requests{times}",
            "Sequences at once, on average, when each takes blocks as it fills them.",
        ),
    ]
    return [{"label": label, "value": value, "small": small, "about": about} for label, value, small, about in rows]


def formula(chosen: Deployment, batch: int) -> list[dict[str, str]]:
    """Each step of the calculation: in words, with the numbers, and its result."""
    shape, lengths, block_size = chosen.shape, chosen.lengths, chosen.block_size
    vector, token = chosen.vector_bytes, chosen.token_bytes
    bits = WEIGHT_BITS[chosen.weights]
    kv = KV_DTYPES[chosen.kv_dtype] if chosen.kv_dtype != "auto" else WEIGHTS[str(chosen.dtype).split(".")[1]]
    weights = "parameters × bits / 8", f"{chosen.parameters:,} × {bits} / 8"
    if bits < TABLE_BITS:
        tables, rest = shape.tables, chosen.parameters - shape.tables
        weights = (
            f"({'table' if shape.tied else 'table and head'} × {TABLE_BITS} + other parameters × bits) / 8",
            f"({tables:,} × {TABLE_BITS} + {rest:,} × {bits}) / 8",
        )
    state = (" + recurrent state", f" + {chosen.state_bytes:,}") if chosen.state_bytes else ("", "")
    reserved, filled = (chosen.blocks_per_sequence(policy) for policy in ("contiguous", "paged"))
    kept = "mean length" if chosen.mean_kept == lengths.mean else "tokens kept, mean over layers"
    longest = f"{chosen.num_blocks:,} / {reserved:,.10g}"
    if chosen.kept(lengths.longest) == lengths.longest and not chosen.state_bytes:
        longest = f"{chosen.num_blocks:,} / ⌈{lengths.longest:,} / {block_size}⌉ = {longest}"
    rows = [
        (
            "vector",
            f"bytes of {shape.head_dim} numbers in {kv} + of their scales",
            f"{vector.numbers} + {vector.scales}",
            f"{sum(vector)} B",
        ),
        (
            "token",
            *_token(chosen),
            f"{token:,} B = {size(token)}",
        ),
        (
            "sequence",
            f"{kept} × token{state[0]}",
            f"{chosen.mean_kept:,.10g} × {token:,}{state[1]}",
            size(chosen.mean_bytes),
        ),
        ("batch", "sequences × sequence", f"{batch:,} × {size(chosen.mean_bytes)}", size(batch * chosen.mean_bytes)),
        ("weights", *weights, size(chosen.weight_bytes)),
        (
            "left for KV",
            "memory × (1 − reserved) − weights",
            f"{size(chosen.memory)} × {1 - chosen.set_aside:.2f} − {size(chosen.weight_bytes)}",
            size(chosen.cache_bytes),
        ),
        (
            "blocks",
            "left for KV / (block size × token), whole ones",
            f"{max(0, chosen.cache_bytes):,} / ({block_size} × {token:,})",
            f"{chosen.num_blocks:,}",
        ),
        (
            "contiguous",
            "blocks / blocks of the longest",
            longest,
            f"{chosen.sequences('contiguous'):,}",
        ),
        (
            "paged",
            "blocks / blocks filled on average",
            f"{chosen.num_blocks:,} / {filled:,.3f}",
            f"{chosen.sequences('paged'):,}",
        ),
    ]
    return [
        {"name": name, "words": words, "numbers": numbers, "result": result} for name, words, numbers, result in rows
    ]


def _token(chosen: Deployment) -> tuple[str, str]:
    """A token's bytes in words, and with the numbers."""
    shape, exempt = chosen.shape, chosen.exempt
    vectors = "2 (key, value)" if shape.kv_vectors == 2 else "1 (latent and rotary key)"
    words = f"layers with attention × KV heads × {vectors} × vector"
    terms: Counter[tuple[int, int]] = Counter()  # layers, by KV heads and the bytes of a vector
    for window, layers in shape.kv_layers.items():
        heads, head_dim = (shape.slot(window)[name] for name in ("kv_heads", "head_dim"))
        for form, count in ((chosen.kv_dtype, layers - exempt[window]), ("auto", exempt[window])):
            terms[heads, sum(FORMATS[form].vector_bytes(head_dim, chosen.dtype))] += count
    if shape.full_attention:
        words += f"; layers that see all apart, with heads of {shape.full_attention[1]} numbers"
    if exempt.total():
        words += f"; exempt layers apart, in {WEIGHTS[str(chosen.dtype).split('.')[1]]}"
    return words, " + ".join(
        f"{count} × {heads} × {shape.kv_vectors} × {vector}" for (heads, vector), count in terms.items() if count
    )


def _overflow(chosen: Deployment, split: dict[str, Any]) -> None:
    """Draw weights that do not fit at their full length, beyond the end of the device."""
    weights, *_ = split["columns"]
    weights["x"] = [chosen.weight_bytes / GiB] * len(weights["x"])
    drawn = chosen.weight_bytes + chosen.memory - chosen.usable_bytes
    split["layout"] |= {
        "xaxis.range": [0, 1.25 * drawn / GiB],  # a tick whose text does not fit in is left out
        "xaxis.tickvals": [chosen.memory / GiB],
        "xaxis.ticktext": [f"device: {size(chosen.memory)}"],
        "xaxis.ticksuffix": "",
    }
