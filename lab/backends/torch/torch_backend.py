"""Packs the new tokens of several sequences into one forward pass of a model."""

from __future__ import annotations

import logging
from itertools import groupby
from operator import add
from typing import NamedTuple

import torch

from lab.backends.gpu.batch_inputs import Layout
from lab.backends.gpu.cuda_graphs import Bucket
from lab.kv_cache.attention import KernelError
from lab.kv_cache.attention_metadata import Group, SdpaChoice, StepPlan
from lab.kv_cache.block_table import BlockTable, side_by_side
from lab.kv_cache.formats import KVStorage
from lab.models.language_model import LanguageModel
from lab.util.device_copy import joined, on_device
from lab.util.device_memory import is_out_of_memory

log = logging.getLogger(__name__)


class NewTokens(NamedTuple):
    """One sequence's part of a forward pass.

    Attributes:
        token_ids: [count] int64 on the model's device.
        start: position of the first.
        table: where their keys and values go. None without a cache: ``start`` is then 0.
        keep: logits are wanted for the last ``keep`` of them.
    """

    token_ids: torch.Tensor
    start: int
    table: BlockTable | None
    keep: int

    @property
    def stop(self) -> int:
        """The position after the last."""
        return self.start + len(self.token_ids)


def forward(
    model: LanguageModel, batch: list[NewTokens], storage: KVStorage | None, sdpa: SdpaChoice = "auto"
) -> torch.Tensor:
    """Compute the new tokens of every sequence in ``batch`` and store their keys and values.

    On a CPU a step in C computes them (``lab.backends.cpu``), once that is ready. If a kernel fails, kernels are given
    up: the reference computes the same tokens, overwriting what the kernel may have stored. If a CUDA graph fails, or
    finds no memory, kernels are launched one by one (``lab.backends.gpu.cuda_graphs``).

    Args:
        sdpa: any choice but "auto" is a back end of torch's attention, and so selects the reference.

    Returns:
        [sum of keep, vocabulary] float32 logits, sequence by sequence.

    Raises:
        MemoryError: C found no memory for the step's activations. (Where torch or Triton finds none, they raise
            several errors: ``lab.util.device_memory.is_out_of_memory``.)
    """
    native = model.native.model
    if native and sdpa == "auto":
        return native.step(batch, model.layers, storage)
    if storage and storage.kernels.on and sdpa == "auto":
        try:
            return _by_kernels(model, batch, storage)
        except KernelError as error:
            log.warning("a kernel failed", exc_info=True)
            storage.kernels.give_up(str(error))
    return _by_reference(model, batch, storage, sdpa)


def is_captured(model: LanguageModel, batch: list[NewTokens], storage: KVStorage) -> bool:
    """Whether ``forward`` would replay a CUDA graph that is there already, for a batch whose logits are all wanted."""
    graphs = storage.graphs
    bucket = Bucket.of(len(batch), max(len(new.token_ids) for new in batch), max(new.stop for new in batch))
    return storage.kernels.on and bool(graphs and graphs.on) and bucket is not None and graphs.has(model, bucket)


def _by_kernels(model: LanguageModel, batch: list[NewTokens], storage: KVStorage) -> torch.Tensor:
    counts = [len(new.token_ids) for new in batch]  # only once: asking a tensor costs more than using the number
    starts, keep = [new.start for new in batch], [new.keep for new in batch]
    longest_new, longest, kept = max(counts), max(map(add, starts, counts)), sum(keep)
    step, size = (counts, starts, keep, [new.table.blocks for new in batch]), batch[0].table.pool.block_size
    token_ids = joined([new.token_ids for new in batch])
    graphs = storage.graphs
    # A prompt's chunk (few of its logits are wanted) is not captured: a step of its shape hardly comes again.
    if graphs and graphs.on and all(count - wanted <= 1 for count, wanted in zip(counts, keep, strict=True)):
        bucket = Bucket.of(len(batch), longest_new, longest)
        if bucket:
            packed = bucket.layout(size).pack(*step, size, model.device)
            logits = graphs.forward(model, token_ids, packed, kept, bucket, size, storage)
            if logits is not None:
                return logits
    layout = Layout(sum(counts), kept, len(batch), -(-longest // size))
    there = layout.split(layout.pack(*step, size, model.device).to(model.device, non_blocking=True))
    plan = there.plan(size, longest_new, longest, storage)
    try:
        return model.forward(token_ids, there.positions, plan, there.kept)
    except Exception as error:
        if not (is_out_of_memory(error) and graphs and graphs.on):
            raise
        graphs.make_room()
    return model.forward(token_ids, there.positions, plan, there.kept)


def _by_reference(
    model: LanguageModel, batch: list[NewTokens], storage: KVStorage | None, sdpa: SdpaChoice
) -> torch.Tensor:
    def shape(i: int) -> tuple[int, ...]:
        return _shape(batch[i], i, alone=sdpa != "auto")

    order = sorted(range(len(batch)), key=shape)
    first_row, kept, rows = {}, [], 0
    for i in order:
        first_row[i] = rows
        rows += len(batch[i].token_ids)
    for i, new in enumerate(batch):
        last = first_row[i] + len(new.token_ids)
        kept += range(last - new.keep, last)

    groups, positions, writes = [], [], []
    for _, members in groupby(order, key=shape):
        indices = list(members)
        group, position, write = _group(
            model, [batch[i] for i in indices], first_row[indices[0]], masked=sdpa == "auto"
        )
        groups.append(group)
        positions.append(position)
        writes.append(write)
    return model.forward(
        torch.cat([batch[i].token_ids for i in order]),
        torch.cat(positions),
        StepPlan(tuple(groups), torch.cat(writes) if storage else None, storage, sdpa),
        on_device(torch.tensor(kept, dtype=torch.long), model.device),
    )


def _shape(new: NewTokens, index: int, *, alone: bool) -> tuple[int, ...]:
    """The key by which sequences are grouped: less than half of what a group reads is then padding.

    Without a cache attention reads the packed rows themselves, and each sequence is a group of its own.
    """
    if alone or new.table is None:
        return len(new.token_ids), index
    return len(new.token_ids), -new.stop.bit_length()


def _group(
    model: LanguageModel, members: list[NewTokens], first: int, *, masked: bool
) -> tuple[Group, torch.Tensor, torch.Tensor | None]:
    """The group whose rows begin at ``first``, with its rows' positions and slots to write, [S * T] int64 each.

    ``masked``: build the mask that it needs.
    """
    device, count, sequences = model.device, len(members[0].token_ids), len(members)
    rows = slice(first, first + sequences * count)
    longest = max(new.stop for new in members)
    starts = on_device(torch.tensor([[new.start] for new in members]), device)
    position = starts + torch.arange(count, device=device)  # [S, T]
    everything = torch.arange(longest, device=device)
    mask = None
    if masked and (count > 1 or sequences > 1):
        mask = everything <= position[:, :, None]
        mask = (mask.repeat(1, model.query_groups, 1) if count > 1 else mask)[:, None]
    if members[0].table is None:
        return Group(rows, sequences, mask), position.flatten(), None

    table = members[0].table
    size = table.pool.block_size
    if sequences == 1 and not table.paged:
        # The blocks are contiguous, so the slots are one run: reading them needs no gather.
        base = table.blocks[0] * size
        return Group(rows, 1, mask, slice(base, base + longest)), position[0], base + position[0]
    height = -(-longest // size)
    tables = side_by_side([new.table.blocks for new in members], height)
    blocks = on_device(torch.frombuffer(tables, dtype=torch.int32).long().view(-1, height), device)
    slots = (blocks[:, :, None] * size + torch.arange(size, device=device)).flatten(1)[:, :longest]
    write = slots.gather(1, position)
    if sequences > 1:
        # Padding is masked but must be finite: 0 x NaN is NaN. A sequence's first slot is.
        slots = torch.where(everything <= position[:, -1:], slots, slots[:, :1])
    return Group(rows, sequences, mask, slots.flatten()), position.flatten(), write.flatten()
