"""The one attention function: every toggle goes through it.

A step is a packed forward. ``input_ids`` is [1, N]: some new tokens of some
sequences, one after another. A ``StepPlan`` says which rows are whose, into
which slots their keys and values go, and which slots each sequence may look at.
Decoding one token, verifying several proposals and reading a prompt differ only
in how many new tokens a sequence brings.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F
from transformers import AttentionInterface

from lab.kv.storage import KVStorage

NAME = "decode_lab"
"""What the function is called in transformers' registry."""


@dataclass(frozen=True, slots=True)
class Span:
    """The new tokens of one sequence in a packed forward.

    Attributes:
        first, count: its rows are first .. first + count - 1 of the packed tokens.
        mask: [count, length] bool, which of its positions each new token may see: those up to its
            own. None for a single new token, which sees all.
        write: [count] int64, a slot for each new token. None without a cache.
        read: the slots of all its positions so far, the new ones included, in order. None without a cache.
    """

    first: int
    count: int
    mask: torch.Tensor | None
    write: torch.Tensor | None = None
    read: slice | torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a packed forward needs beside its tokens. ``storage`` is None without a cache."""

    spans: tuple[Span, ...]
    storage: KVStorage | None


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    plan: StepPlan | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Store the new keys and values, then let every new token attend to what came before it.

    Args:
        query: [1, heads, N, head_dim], rotary embedding applied.
        key, value: [1, kv_heads, N, head_dim].
        scaling: factor on the scores; None: 1 / sqrt(head_dim).
        plan: the step's plan, handed through ``model.forward(..., plan=...)``.

    Returns:
        [1, N, heads, head_dim] and no attention weights.

    Raises:
        RuntimeError: called without a plan (``model.generate`` on a model the lab has plugged into).
    """
    if plan is None:
        raise RuntimeError(
            "this model's attention is driven by the lab's engine and needs a step plan; to call the model "
            "yourself, do so inside `with engine.target.stock_attention():`"
        )
    outputs = []
    for span in plan.spans:
        rows = slice(span.first, span.first + span.count)
        new_key, new_value = key[0, :, rows].transpose(0, 1), value[0, :, rows].transpose(0, 1)
        if plan.storage is not None:
            layer = plan.storage.layers[module.layer_idx]
            layer.write(span.write, new_key, new_value)
            new_key, new_value = layer.read(span.read)
        outputs.append(_attend(query[0, :, rows], new_key, new_value, span.mask, scaling))
    return torch.cat(outputs)[None], None


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    """query [heads, T, d]; key, value [L, kv_heads, d]; mask [T, L] -> [T, heads, d].

    The query heads that share a KV head are laid side by side as if they were
    more queries, so that keys and values are never repeated (grouped-query
    attention: Ainslie et al., 2305.13245).
    """
    heads, count, dim = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    out = F.scaled_dot_product_attention(
        query.reshape(1, kv_heads, group * count, dim),
        key.transpose(0, 1)[None],
        value.transpose(0, 1)[None],
        attn_mask=None if mask is None else mask.repeat(group, 1),
        scale=scaling,
    )
    return out.view(heads, count, dim).transpose(0, 1)


AttentionInterface.register(NAME, attention)
