"""A layer's matrix products in a step of few rows, with the operations fused into them: the lab's against torch's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from lab.bench.gpu.device import clean_up, layer_seconds, layers_to_rotate
from lab.bench.gpu.sheet import Sheet
from lab.models.model_shape import ModelShape

ROWS = (1, 5, 16)
EPSILON = 1e-5


def time_products(sheet: Sheet, model: str, shape: ModelShape, device: torch.device, repeats: int) -> None:
    """Add to ``products``: microseconds, and GB/s of the matrix. In bfloat16, which the lab's kernel requires."""
    found = sheet.result.setdefault("products", [])
    attended = shape.heads * shape.head_dim
    for name, way, outputs, inputs in (
        ("norm; query, key and value", _normed, attended + 2 * shape.kv_heads * shape.head_dim, shape.hidden_size),
        ("attention's output, added", _added, shape.hidden_size, attended),
        ("norm; gate and up; SwiGLU", _gated, 2 * shape.intermediate_size, shape.hidden_size),
        ("down, added", _added, shape.hidden_size, shape.intermediate_size),
    ):
        with sheet.attempt(f"{model}: {name}"):
            read = inputs * outputs * torch.bfloat16.itemsize
            layers = layers_to_rotate(read, device)
            matrices = torch.randn(layers, outputs, inputs, dtype=torch.bfloat16, device=device) / inputs**0.5
            for rows in ROWS:
                ways = way(matrices, rows)
                ours, theirs = (over(0).float() for over in ways.values())
                torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02 * theirs.abs().max().item())
                for by, over in ways.items():
                    seconds = layer_seconds(over, layers, device, repeats)
                    found.append(
                        {
                            "model": model,
                            "product": name,
                            "rows": rows,
                            "by": by,
                            "microseconds": 1e6 * seconds,
                            "gb_per_second": read / seconds / 1e9,
                        }
                    )
        matrices = ways = over = None
        clean_up(device)
    sheet.say(f"  products of {model} done")


Ways = dict[str, Callable[[int], torch.Tensor]]
"""Name of each implementation, and what computes a layer with it."""


def _normed(matrices: torch.Tensor, rows: int) -> Ways:
    from lab.backends.gpu.fused_kernels import rms_norm
    from lab.backends.gpu.fused_product import normed_product

    x, norm = matrices.new_ones(rows, matrices.shape[-1]), matrices.new_ones(matrices.shape[-1])
    return {
        "lab": lambda layer: normed_product(x, norm, EPSILON, matrices[layer], None),
        "torch": lambda layer: F.linear(rms_norm(x, norm, EPSILON), matrices[layer]),
    }


def _gated(matrices: torch.Tensor, rows: int) -> Ways:
    from lab.backends.gpu.fused_kernels import rms_norm, swiglu
    from lab.backends.gpu.fused_product import gated_product

    x, norm = matrices.new_ones(rows, matrices.shape[-1]), matrices.new_ones(matrices.shape[-1])
    return {
        "lab": lambda layer: gated_product(x, norm, EPSILON, matrices[layer]),
        "torch": lambda layer: swiglu(F.linear(rms_norm(x, norm, EPSILON), matrices[layer])),
    }


def _added(matrices: torch.Tensor, rows: int) -> Ways:
    from lab.backends.gpu.fused_product import add_product

    x, (to, other) = matrices.new_ones(rows, matrices.shape[-1]), matrices.new_zeros(2, rows, matrices.shape[-2])
    return {
        "lab": lambda layer: add_product(to, x, matrices[layer]),
        "torch": lambda layer: other.addmm_(x, matrices[layer].t()),
    }


def format_products(result: dict) -> list[str]:
    products = result.get("products", ())
    took = {(row["model"], row["product"], row["rows"], row["by"]): row["gb_per_second"] for row in products}
    lines = []
    for key in dict.fromkeys((row["model"], row["product"]) for row in products):
        cells = (
            f"{rows}: {ours:.0f} ({theirs:.0f})"
            for rows in ROWS
            if (ours := took.get((*key, rows, "lab"))) and (theirs := took.get((*key, rows, "torch")))
        )
        lines.append(f"{': '.join(key)}, GB/s by rows (by torch's): {'  '.join(cells)}")
    return lines
