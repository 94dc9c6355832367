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
class Group:
    """Sequences that bring equally many new tokens and are about equally long: one call of the kernel.

    Attributes:
        rows: theirs of the packed tokens, sequence by sequence.
        sequences: how many they are; S below. Each has T new tokens and at most L in all.
        mask: [S, 1, G * T or 1, L] bool, which of its positions each new token may see: those up to its
            own. G: query heads that share a KV head. None: every new token sees all.
        read: the slots of all their positions so far, the new ones included, in order: a run of
            slots, or [S * L] int64, the shorter ones padded. None without a cache.
    """

    rows: slice
    sequences: int
    mask: torch.Tensor | None
    read: slice | torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a packed forward of N tokens needs beside them.

    Attributes:
        groups: in the order of their rows.
        write: [N] int64, a slot for each new token. None without a cache.
        storage: None without a cache.
    """

    groups: tuple[Group, ...]
    write: torch.Tensor | None
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
    new_key, new_value = key[0].transpose(0, 1), value[0].transpose(0, 1)
    if plan.storage is not None:
        layer = plan.storage.layers[module.layer_idx]
        layer.write(plan.write, new_key, new_value)
    outputs = []
    for group in plan.groups:
        if plan.storage is not None:
            keys, values = layer.read(group.read)
        else:
            keys, values = new_key[group.rows], new_value[group.rows]
        outputs.append(_attend(query[0, :, group.rows], keys, values, group, scaling))
    return torch.cat(outputs)[None], None


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, group: Group, scaling: float | None
) -> torch.Tensor:
    """query [heads, S * T, d]; key, value [S * L, kv_heads, d] -> [S * T, heads, d].

    The query heads that share a KV head are laid side by side as if they were
    more queries, so that keys and values are never repeated (grouped-query
    attention: Ainslie et al., 2305.13245).
    """
    (heads, count, dim), kv_heads, rows = query.shape, key.shape[1], group.sequences
    count //= rows
    shared = heads // kv_heads
    query = query.view(kv_heads, shared, rows, count, dim).permute(2, 0, 1, 3, 4)
    out = F.scaled_dot_product_attention(
        query.reshape(rows, kv_heads, shared * count, dim),
        key.view(rows, -1, kv_heads, dim).transpose(1, 2),
        value.view(rows, -1, kv_heads, dim).transpose(1, 2),
        attn_mask=group.mask,
        scale=scaling,
    )
    out = out.view(rows, kv_heads, shared, count, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(rows * count, heads, dim)


AttentionInterface.register(NAME, attention)
