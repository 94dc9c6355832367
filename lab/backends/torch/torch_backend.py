"""The reference back end, in torch: the one to read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from lab.backends.interface import Backend, DraftRound, DraftTokens, NewTokens, PendingVerification
from lab.backends.torch.batched_verification import verify_rounds
from lab.backends.torch.sampler import sample
from lab.config import SamplingParams
from lab.kv_cache.attention_metadata import Group, SdpaChoice, StepPlan
from lab.kv_cache.block_table import side_by_side
from lab.kv_cache.formats import KVStorage
from lab.models.language_model import LanguageModel
from lab.util.device_copy import joined, on_device


class TorchBackend(Backend):
    """A model computed by torch, operation by operation, or by its compiled layers."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def forward(self, batch: Sequence[NewTokens], storage: KVStorage | None, sdpa: SdpaChoice = "auto") -> torch.Tensor:
        return _forward(self.model, batch, storage, sdpa)

    def draft(
        self,
        batch: Sequence[NewTokens],
        windows: Sequence[int],
        sampling: Sequence[SamplingParams],
        uniforms: Sequence[torch.Tensor],
        storage: KVStorage | None,
    ) -> list[DraftTokens]:
        """One forward pass per token of the longest window."""
        batch = list(batch)
        greedy = all(params.greedy for params in sampling)
        draws = None if greedy else on_device(joined(uniforms), self.model.device).split(windows)
        tokens: list[list[torch.Tensor]] = [[] for _ in batch]
        rows: list[list[torch.Tensor]] = [[] for _ in batch]
        for i in range(max(windows)):
            active = [k for k, window in enumerate(windows) if window > i]
            logits = self.forward([batch[k] for k in active], storage)
            u = None if draws is None else torch.stack([draws[k][i] for k in active])
            q, chosen = self.sample(logits, [sampling[k] for k in active], u)
            for row, k in enumerate(active):
                token, new = chosen[row : row + 1], batch[k]
                tokens[k].append(token)
                rows[k].append(q[row])
                if new.table:
                    batch[k] = new._replace(token_ids=token, start=new.stop)
                else:
                    batch[k] = new._replace(token_ids=torch.cat([new.token_ids, token]))
        return [DraftTokens(torch.cat(t), torch.stack(q)) for t, q in zip(tokens, rows, strict=True)]

    def sample(
        self, logits: torch.Tensor, sampling: Sequence[SamplingParams], u: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return sample(logits, sampling, u)

    def verify(self, logits: torch.Tensor, rounds: Sequence[DraftRound]) -> PendingVerification:
        return verify_rounds(logits, rounds, self.sample)

    def first(self, layers: int) -> Backend:
        return type(self)(self.model.first(layers))


def _forward(
    model: LanguageModel, batch: Sequence[NewTokens], storage: KVStorage | None, sdpa: SdpaChoice
) -> torch.Tensor:
    """One packed pass over all new tokens, sequences of one shape side by side."""

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
    seen = {"mask": mask, "positions": position if model.other_attention else None}
    if members[0].table is None:
        return Group(rows, sequences, **seen), position.flatten(), None

    table = members[0].table
    size = table.pool.block_size
    if sequences == 1 and not table.paged:
        # The blocks are contiguous, so the slots are one run: reading them needs no gather.
        base = table.blocks[0] * size
        return Group(rows, 1, read=slice(base, base + longest), **seen), position[0], base + position[0]
    height = -(-longest // size)
    tables = side_by_side([new.table.blocks for new in members], height)
    blocks = on_device(torch.frombuffer(tables, dtype=torch.int32).long().view(-1, height), device)
    slots = (blocks[:, :, None] * size + torch.arange(size, device=device)).flatten(1)[:, :longest]
    write = slots.gather(1, position)
    if sequences > 1:
        # Padding is masked but must be finite: 0 x NaN is NaN. A sequence's first slot is.
        slots = torch.where(everything <= position[:, -1:], slots, slots[:, :1])
    return Group(rows, sequences, read=slots.flatten(), **seen), position.flatten(), write.flatten()
