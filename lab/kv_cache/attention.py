"""The attention function that models call: it stores new keys and values, then lets new tokens attend.

A step is a packed forward pass with metadata (``lab.kv_cache.attention_metadata``). Decoding one token, verifying
several draft tokens and reading a prompt differ only in how many new tokens a sequence has.

With a ``StepPlan`` torch computes it here, and gathers the slots that it reads. A ``BlockPlan`` brings a function of
its own, which reads the cache block by block.

Lesson 2, the KV cache.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface

from lab.kv_cache.attention_metadata import BlockPlan, Group, Scores, SdpaChoice, StepPlan, current_plan

NAME = "decode_lab"
"""The function's name in transformers' registry."""

BACKENDS = {"math": SDPBackend.MATH, "efficient": SDPBackend.EFFICIENT_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
"""Torch's ways to compute attention: with the whole matrix of scores in memory; in chunks (Rabe and Staats,
2112.05682); in tiles that never leave the processor (FlashAttention: Dao et al., 2205.14135)."""


# On an H100 or newer, torch from 2.11 on prefers cuDNN, which makes a plan for every new length of a text, anew in each
# thread: tens of milliseconds for each of a hundred lengths (huggingface/transformers#48163). Off in the whole process,
# because transformers' own `generate`, measured beside the lab, would pay it, too.
torch.backends.cuda.enable_cudnn_sdp(False)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    plan: StepPlan | BlockPlan | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Store the new keys and values, then let every new token attend to what came before it.

    Args:
        query: [1, heads, N, head_dim], rotary embedding applied.
        key, value: [1, kv_heads, N, head_dim].
        scaling: factor on the scores; None: 1 / sqrt(head_dim).
        plan: the step's plan, passed through ``model.forward(..., plan=...)``.
        sliding_window: a token sees so many positions, its own included. None: all before it.
        softcap: scores are squashed to less than this (Gemma 2).
        s_aux: [heads], a score each that takes part in the softmax and has no value: a sink (gpt-oss).

    Returns:
        [1, N, heads, head_dim] and no attention weights.

    Raises:
        RuntimeError: called without a plan (``model.generate`` on a model the lab has plugged into).
        KernelError: raised by a plan's kernels. Storing the same keys and values again is safe.
    """
    if plan is None and (plan := current_plan.get()):
        plan = plan.to(query.device)
    if plan is None:
        raise RuntimeError(
            "this model's attention is driven by the lab's engine and needs a step plan; to call the model "
            "yourself, do so inside `with engine.target.stock_attention():`"
        )
    if latent := hasattr(type(module), "absorb"):  # see ``lab.models.latent_attention``
        query = module.absorb(query)
    new_key, new_value = key[0].transpose(0, 1), value[0].transpose(0, 1)
    if isinstance(plan, BlockPlan):
        query = query[0].transpose(0, 1)
        scores = Scores(sliding_window or None, softcap, s_aux)
        return plan.attend(module.layer_idx, query, new_key, new_value, plan, scaling, scores)[None], None
    if plan.storage is not None:
        plan = plan.of_layer(module.layer_idx)
        layer = plan.storage.layers[module.layer_idx]
        layer.write(plan.write, new_key, new_value)
    outputs = []
    for group in plan.groups:
        if plan.storage is not None:
            keys, values = layer.read(group.read)
        else:
            keys, values = new_key[group.rows], new_value[group.rows]
        window = sliding_window if sliding_window and sliding_window < len(keys) // group.sequences else None
        if plan.sdpa == "auto" or window or softcap or s_aux is not None:
            own = query[0, :, group.rows]
            outputs.append(_attend(own, keys, values, group, scaling, window, softcap, s_aux))
        else:
            outputs.append(attend_by(plan.sdpa, query[0, :, group.rows], keys, values, scaling))
    found = torch.cat(outputs)
    return (module.values(found) if latent else found)[None], None


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    group: Group,
    scaling: float | None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """query [heads, S * T, d]; key, value [S * L, kv_heads, d] -> [S * T, heads, d].

    The query heads that share a KV head are laid out as additional queries, so that keys and values are never repeated
    (grouped-query attention: Ainslie et al., 2305.13245).
    """
    (heads, count, dim), kv_heads, rows = query.shape, key.shape[1], group.sequences
    count //= rows
    shared, length, mask = heads // kv_heads, key.shape[0] // rows, group.mask
    if window or (mask is None and group.positions is not None and count > 1):  # no mask: a back end was chosen
        mask = group.within(min(window or length, length), length, shared)
    query = query.view(kv_heads, shared, rows, count, dim).permute(2, 0, 1, 3, 4)
    query = query.reshape(rows, kv_heads, shared * count, dim)
    key, value = (it.view(rows, -1, kv_heads, dim).transpose(1, 2) for it in (key, value))
    if softcap or sinks is not None:
        sinks = (
            sinks if sinks is None else sinks.view(kv_heads, shared, 1).expand(-1, -1, count).reshape(kv_heads, -1, 1)
        )
        out = _attend_by_scores(query, key, value, mask, scaling, softcap, sinks)
    else:
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    out = out.view(rows, kv_heads, shared, count, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(rows * count, heads, dim)


def _attend_by_scores(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query [S, kv_heads, Q, d]; key, value [S, kv_heads, L, d]; sinks [kv_heads, Q, 1] -> [S, kv_heads, Q, d]. Torch's
    attention never shows the scores, which a softcap and sinks change."""
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = scores.float()
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.float().expand(len(scores), -1, -1, -1)], dim=-1)
    return scores.softmax(dim=-1)[..., : key.shape[2]].to(value.dtype) @ value


def attend_by(
    choice: SdpaChoice, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """One sequence, by one back end: query [heads, T, d]; key, value [L, kv_heads, d] -> [T, heads, d].

    The T new tokens are the last of its L. No back end but "math" takes a mask of any shape, so keys and values
    are repeated for the query heads that share them, and the mask is given by name (``causal_lower_right``).
    """
    shared = query.shape[0] // key.shape[1]
    key, value = (x.transpose(0, 1).repeat_interleave(shared, 0)[None] for x in (key, value))
    seen = causal_lower_right(query.shape[1], key.shape[2])
    with sdpa_kernel(BACKENDS[choice]):
        return F.scaled_dot_product_attention(query[None], key, value, attn_mask=seen, scale=scaling)[0].transpose(0, 1)


AttentionInterface.register(NAME, attention)
