"""Packing the new tokens of sequences into one forward of a model."""

from __future__ import annotations

from typing import NamedTuple

import torch

from lab.kv.attention import Span, StepPlan
from lab.kv.blocks import BlockTable
from lab.kv.storage import KVStorage
from lab.pair.models import LanguageModel


class NewTokens(NamedTuple):
    """What one sequence brings to a forward.

    Attributes:
        token_ids: [count] int64 on the model's device.
        start: position of the first.
        table: where its keys and values go. None without a cache: ``start`` is then 0.
        keep: logits are wanted for the last ``keep`` of them.
    """

    token_ids: torch.Tensor
    start: int
    table: BlockTable | None
    keep: int


def forward(model: LanguageModel, batch: list[NewTokens], storage: KVStorage | None) -> torch.Tensor:
    """Compute the new tokens of every sequence in ``batch`` and store their keys and values.

    Returns:
        [sum of keep, vocabulary] float32 logits, sequence by sequence.
    """
    device = model.device
    spans, positions, kept, first = [], [], [], 0
    for new in batch:
        count = len(new.token_ids)
        positions.append(torch.arange(new.start, new.start + count, device=device))
        kept.append(torch.arange(first + count - new.keep, first + count, device=device))
        spans.append(_span(new, first, count, device))
        first += count
    return model.forward(
        torch.cat([new.token_ids for new in batch]),
        torch.cat(positions),
        StepPlan(tuple(spans), storage),
        torch.cat(kept),
    )


def _span(new: NewTokens, first: int, count: int, device: torch.device) -> Span:
    stop = new.start + count
    mask = None
    if count > 1:
        position = torch.arange(stop, device=device)
        mask = position <= position[new.start :, None]
    if new.table is None:
        return Span(first, count, mask)
    size = new.table.pool.block_size
    if not new.table.paged:
        # The blocks are neighbours, so the slots are one run: reading them needs no gathering.
        base = new.table.blocks[0] * size
        write = torch.arange(base + new.start, base + stop, device=device)
        return Span(first, count, mask, write, slice(base, base + stop))
    blocks = torch.tensor(new.table.blocks[: -(-stop // size)], device=device)
    slots = (blocks[:, None] * size + torch.arange(size, device=device)).flatten()[:stop]
    return Span(first, count, mask, slots[new.start :], slots)
