"""The reference back end, in torch: the one to read."""

from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from lab.backends.interface import Backend, DraftRound, DraftTokens, HeadBackend, NewTokens, PendingVerification
from lab.backends.torch.batched_verification import verify_rounds
from lab.backends.torch.sampler import sample
from lab.config import SamplingParams
from lab.kv_cache.attention_metadata import Group, SdpaChoice, StepPlan, side_by_side
from lab.kv_cache.block_pool import BlockPool
from lab.kv_cache.block_table import BlockTable
from lab.kv_cache.kv_cache import new_storage
from lab.kv_cache.recurrent_state import RecurrentState
from lab.kv_cache.storage import KVStorage
from lab.models.dflash_head import DFlashHead
from lab.models.eagle3_head import Eagle3Head
from lab.models.language_model import LanguageModel, Taps
from lab.models.mtp_head import MTPHead
from lab.models.recurrent_layers import PassPart
from lab.models.state_head import StateHead
from lab.util.device_copy import joined, on_device

Sample = Callable[[torch.Tensor, Sequence[SamplingParams], torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]
"""``Backend.sample``."""


class TorchBackend(Backend):
    """A model computed by torch, operation by operation, or by its compiled layers."""

    def __init__(self, model: LanguageModel, origin: "TorchBackend | None" = None) -> None:
        """``origin``: the back end of the model whose first layers these are."""
        self.model = model
        self._origin = origin
        self._recurrent: WeakKeyDictionary[BlockTable, RecurrentState] = WeakKeyDictionary()

    def forward(
        self,
        batch: Sequence[NewTokens],
        storage: KVStorage | None,
        sdpa: SdpaChoice = "auto",
        taps: Taps | None = None,
    ) -> torch.Tensor:
        return self._forward(batch, storage, [(new.start, 0) for new in batch], sdpa, taps)

    def _forward(
        self,
        batch: Sequence[NewTokens],
        storage: KVStorage | None,
        settled: Sequence[tuple[int, int]],
        sdpa: SdpaChoice = "auto",
        taps: Taps | None = None,
    ) -> torch.Tensor:
        """``settled``: how many tokens of each sequence will never be rejected, and how many are drafted after them."""
        packed = pack(self.model, batch, storage, sdpa)
        step = packed.token_ids, packed.positions, packed.plan, packed.keep
        how = {"parts": self._parts(packed, batch, settled)} if self.model.recurrent else {}
        if taps is None:
            return self.model.forward(*step, **how)
        found = Taps(taps.layers, torch.empty_like(taps.states))
        logits = self.model.forward(*step, taps=found, **how)
        taps.states.copy_(packed.in_order(found.states))
        return logits

    def _parts(
        self, packed: "PackedStep", batch: Sequence[NewTokens], settled: Sequence[tuple[int, int]]
    ) -> list[PassPart]:
        """Each sequence's part of a packed pass, with its recurrent state, in the order of their rows."""
        parts, first = [], 0
        for i in packed.order:
            new, rows = batch[i], slice(first, first := first + packed.counts[i])
            if new.table is None:
                parts.append(PassPart(rows, 0))
                continue
            state = self._state(new.table)
            if self._origin and new.start == settled[i][0]:
                state.follow(self._origin.recurrent_state(new))
            parts.append(
                PassPart(
                    rows,
                    new.start,
                    uncertain=max(0, new.keep - 1),
                    state=state,
                    settled=settled[i][0],
                    drafting=settled[i][1],
                    block_size=new.table.pool.block_size if new.table.paged else None,
                    behind=new.table.states_behind,
                    emit=new.table.emit,
                )
            )
        return parts

    def _state(self, table: BlockTable) -> RecurrentState:
        if table not in self._recurrent:
            self._recurrent[table] = RecurrentState(table.state)
        return self._recurrent[table]

    def keep_state(self, table: BlockTable) -> None:
        if state := self._recurrent.get(table):
            state.keep(table)

    def recurrent_state(self, new: NewTokens) -> RecurrentState:
        """A sequence's state before its new tokens."""
        state = self._state(new.table)
        self.model.recurrent.rewind(state, new.start, new.start, new.table.emit)
        return state

    def draft(
        self,
        batch: Sequence[NewTokens],
        windows: Sequence[int],
        sampling: Sequence[SamplingParams],
        uniforms: Sequence[torch.Tensor],
        storage: KVStorage | None,
    ) -> list[DraftTokens]:
        """One forward pass per token of the longest window."""
        batch, settled = list(batch), [(new.start, window) for new, window in zip(batch, windows, strict=True)]
        greedy = all(params.greedy for params in sampling)
        draws = None if greedy else on_device(joined(uniforms), self.model.device).split(windows)
        tokens: list[list[torch.Tensor]] = [[] for _ in batch]
        rows: list[list[torch.Tensor]] = [[] for _ in batch]
        for i in range(max(windows)):
            active = [k for k, window in enumerate(windows) if window > i]
            some = [batch[k] for k in active]
            if self.model.recurrent:
                logits = self._forward(some, storage, [settled[k] for k in active])
            else:
                logits = self.forward(some, storage)
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
        return type(self)(self.model.first(layers), self)

    def head(self, kind: str, sample: Sample | None = None) -> HeadBackend:
        """``sample``: another back end's. None: this one's."""
        in_blocks = kind in ("dflash", "dspark")
        return (BlockHead if in_blocks else TorchHead)(self.model.heads[kind], sample or self.sample)


class TorchHead(HeadBackend):
    """An EAGLE-3 or MTP head computed by torch; ``sample`` draws its tokens."""

    def __init__(self, model: Eagle3Head | MTPHead, sample: Sample) -> None:
        self.model, self._sample, self._target_logits = model, sample, TargetLogits(model)

    def read(self, batch: Sequence[NewTokens], states: Sequence[torch.Tensor], storage: KVStorage) -> None:
        self._forward(batch, [self.model.fuse(some) for some in states], storage)

    def draft(
        self,
        batch: Sequence[NewTokens],
        states: Sequence[torch.Tensor],
        windows: Sequence[int],
        sampling: Sequence[SamplingParams],
        uniforms: Sequence[torch.Tensor],
        storage: KVStorage | None,
    ) -> list[DraftTokens]:
        batch, model = list(batch), self.model
        hidden = [model.fuse(some) for some in states]
        greedy = all(params.greedy for params in sampling)
        draws = None if greedy else on_device(joined(uniforms), model.device).split(windows)
        tokens: list[list[torch.Tensor]] = [[] for _ in batch]
        rows: list[list[torch.Tensor]] = [[] for _ in batch]
        for i in range(max(windows)):
            active = [k for k, window in enumerate(windows) if window > i]
            last = self._forward([batch[k] for k in active], [hidden[k] for k in active], storage)
            u = None if draws is None else torch.stack([draws[k][i] for k in active])
            q, chosen = self._sample(self._target_logits(model.logits(last)), [sampling[k] for k in active], u)
            fed_back = model.fed_back(last)
            for row, k in enumerate(active):
                token, new, state = chosen[row : row + 1], batch[k], fed_back[row : row + 1]
                tokens[k].append(token)
                rows[k].append(q[row])
                if new.table:
                    batch[k], hidden[k] = new._replace(token_ids=token, start=new.stop), state
                else:
                    batch[k] = new._replace(token_ids=torch.cat([new.token_ids, token]))
                    hidden[k] = torch.cat([hidden[k], state])
        return [DraftTokens(torch.cat(t), torch.stack(q)) for t, q in zip(tokens, rows, strict=True)]

    def _forward(
        self, batch: Sequence[NewTokens], hidden: Sequence[torch.Tensor], storage: KVStorage | None
    ) -> torch.Tensor:
        """One pass; [sequences, H], what comes out for the last token of each."""
        first = 1 if storage else 0  # without a cache the rows themselves are attended to
        packed = pack(self.model, [new._replace(keep=1) for new in batch], storage, "auto", first)
        there = torch.cat([hidden[i] for i in packed.order])
        out = self.model(packed.token_ids[None], there[None], packed.positions[None], plan=packed.plan)
        return out[0, packed.keep]


class BlockHead(HeadBackend):
    """A DFlash or DSpark head computed by torch; ``sample`` draws its tokens."""

    def __init__(self, model: DFlashHead, sample: Sample) -> None:
        self.model, self._sample, self._target_logits = model, sample, TargetLogits(model)

    def read(self, batch: Sequence[NewTokens], states: Sequence[torch.Tensor], storage: KVStorage) -> None:
        device = self.model.device
        positions = [torch.arange(new.start, new.stop, device=device) for new in batch]
        slots = torch.cat([_slots(new.table, at) for new, at in zip(batch, positions, strict=True)])
        text = self.model.keys_and_values(self.model.fuse(torch.cat(list(states))), torch.cat(positions))
        for layer, (keys, values) in zip(storage.layers, text, strict=True):
            layer.write(slots, keys, values)

    def draft(
        self,
        batch: Sequence[NewTokens],
        states: Sequence[torch.Tensor],
        windows: Sequence[int],
        sampling: Sequence[SamplingParams],
        uniforms: Sequence[torch.Tensor],
        storage: KVStorage | None,
    ) -> list[DraftTokens]:
        """All tokens in one pass; DFlash draws each without regard to the others, DSpark one after another. Without a
        cache, the text's keys and values are kept for this pass."""
        model = self.model
        if storage is None:
            batch, storage = self._kept(batch, windows)
        known = [new._replace(token_ids=new.token_ids[:-1]) for new in batch]
        if any(len(some) for some in states):
            self.read(known, states, storage)
        blocks = [
            new._replace(token_ids=model.block(new.token_ids[-1], window), start=new.stop - 1, keep=window)
            for new, window in zip(batch, windows, strict=True)
        ]
        logits = self._logits(blocks, storage)
        greedy = all(params.greedy for params in sampling)
        u = None if greedy else on_device(joined(uniforms), model.device)
        each = [params for params, window in zip(sampling, windows, strict=True) for _ in range(window)]
        if model.one_by_one:
            q, chosen = self._one_by_one(logits, torch.stack([new.token_ids[-1] for new in batch]), windows, each, u)
        else:
            q, chosen = self._sample(self._target_logits(logits), each, u)
        drafts = zip(chosen.split(list(windows)), q.split(list(windows)), strict=True)
        return [DraftTokens(tokens, rows) for tokens, rows in drafts]

    def _one_by_one(
        self,
        logits: torch.Tensor,
        newest: torch.Tensor,
        windows: Sequence[int],
        sampling: Sequence[SamplingParams],
        u: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``sample``, from the logits of all blocks [sum of windows, draft tokens], each token by that before it.
        ``newest``: [sequences], before each block."""
        model, first = self.model, [0, *accumulate(windows)]
        tokens = newest.new_empty(len(logits))
        q = logits.new_empty(len(logits), model.vocabulary, dtype=torch.float32)
        for i in range(max(windows)):
            active = [k for k, window in enumerate(windows) if window > i]
            at = [first[k] + i for k in active]
            found = model.after(logits[at].float(), tokens[[row - 1 for row in at]] if i else newest)
            given = None if u is None else u[at]
            q[at], tokens[at] = self._sample(self._target_logits(found), [sampling[row] for row in at], given)
        return q, tokens

    def _logits(self, blocks: list[NewTokens], storage: KVStorage) -> torch.Tensor:
        """[sum of keep, draft tokens]."""
        packed = pack(self.model, blocks, storage, "auto", causal=False)
        out = self.model(packed.token_ids[None], packed.positions[None], plan=packed.plan)
        return self.model.logits(out[0, packed.keep])

    def _kept(self, batch: Sequence[NewTokens], windows: Sequence[int]) -> tuple[list[NewTokens], KVStorage]:
        """The batch with a block for each sequence, and a storage for the blocks."""
        model, size = self.model, max(new.stop + window for new, window in zip(batch, windows, strict=True))
        storage = new_storage(model, "auto", len(batch) * size)
        pool, tables = BlockPool(len(batch), size), []
        for _ in batch:
            tables.append(BlockTable(pool, 0, lambda *_, **__: None, paged=False))
            tables[-1].allocate_slots(size)
        return [new._replace(table=table) for new, table in zip(batch, tables, strict=True)], storage


def _slots(table: BlockTable, positions: torch.Tensor) -> torch.Tensor:
    """[count] int64, where the positions' keys and values are kept."""
    size = table.pool.block_size
    blocks = on_device(torch.tensor(table.blocks, dtype=torch.long), positions.device)
    return blocks[positions // size] * size + positions % size


class TargetLogits:
    """From logits over a head's draft tokens to logits over the target's."""

    def __init__(self, head: StateHead) -> None:
        self._vocabulary, self._ids = head.vocabulary, head.target_ids
        self._all = self._ids.tolist() == [*range(head.vocabulary)]

    def __call__(self, found: torch.Tensor) -> torch.Tensor:
        """[rows, draft tokens] -> [rows, vocabulary] float32."""
        found = found.float()
        if self._all:
            return found
        return found.new_full((len(found), self._vocabulary), -torch.inf).index_copy_(1, self._ids, found)


class PackedStep(NamedTuple):
    """The arguments of a model's packed pass over all new tokens, sequences of one shape side by side.

    Attributes:
        order: the sequences in the order of their rows.
        counts: of the tokens of each, in the batch's order.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    plan: StepPlan
    keep: torch.Tensor
    order: list[int]
    counts: list[int]

    def in_order(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of the packed tokens, in the order of the batch."""
        parts = dict(zip(self.order, rows.split([self.counts[i] for i in self.order]), strict=True))
        return torch.cat([parts[i] for i in range(len(parts))])


def pack(
    model: LanguageModel | StateHead,
    batch: Sequence[NewTokens],
    storage: KVStorage | None,
    sdpa: SdpaChoice,
    first: int = 0,
    causal: bool = True,
) -> PackedStep:
    """A packed pass's tokens and plan. ``first``: the first position that has keys and values. Not ``causal``: new
    tokens see those after them too."""

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

    alike = [list(members) for _, members in groupby(order, key=shape)]

    def plan(some: Sequence[NewTokens], others: tuple[StepPlan, ...] = ()) -> tuple[StepPlan, torch.Tensor]:
        groups, positions, writes = zip(
            *(
                _group(model, [some[i] for i in members], first_row[members[0]], sdpa == "auto", first, causal)
                for members in alike
            ),
            strict=True,
        )
        write = torch.cat(writes) if storage else None
        return StepPlan(groups, write, storage, sdpa, others), torch.cat(positions)

    more = range(1, storage.num_groups if storage else 1)
    others = tuple(plan([new._replace(table=new.table.of_group(i)) for new in batch])[0] for i in more)
    planned, positions = plan(batch, others)
    return PackedStep(
        torch.cat([batch[i].token_ids for i in order]),
        positions,
        planned,
        on_device(torch.tensor(kept, dtype=torch.long), model.device),
        order,
        [len(new.token_ids) for new in batch],
    )


def _shape(new: NewTokens, index: int, *, alone: bool) -> tuple[int, ...]:
    """The key by which sequences are grouped: less than half of what a group reads is then padding.

    Without a cache attention reads the packed rows themselves, and each sequence is a group of its own.
    """
    if alone or new.table is None:
        return len(new.token_ids), index
    return len(new.token_ids), -new.stop.bit_length()


def _group(
    model: LanguageModel | StateHead,
    members: list[NewTokens],
    first: int,
    masked: bool,
    first_seen: int,
    causal: bool,
) -> tuple[Group, torch.Tensor, torch.Tensor | None]:
    """The group whose rows begin at ``first``, with its rows' positions and slots to write, [S * T] int64 each.

    ``masked``: build the mask that it needs, which if ``causal`` hides positions after a token. Those before
    ``first_seen`` are not read: nothing was ever written there.
    """
    device, count, sequences = model.device, len(members[0].token_ids), len(members)
    rows = slice(first, first + sequences * count)
    starts = on_device(torch.tensor([[new.start] for new in members]), device)
    position = text_position = starts + torch.arange(count, device=device)  # [S, T]
    skipped = [new.table.skipped * new.table.pool.block_size if new.table else 0 for new in members]
    longest = max(new.stop - before for new, before in zip(members, skipped, strict=True))
    if any(skipped):  # from here on, positions count from the first that is kept
        position = position - on_device(torch.tensor(skipped), device)[:, None]
    everything = torch.arange(first_seen, longest, device=device)
    mask = None
    if masked and ((causal and count > 1) or sequences > 1):
        mask = everything <= (position if causal else position[:, -1:])[:, :, None]
        mask = (mask.repeat(1, model.query_groups, 1) if causal and count > 1 else mask)[:, None]
    seen = {"mask": mask, "positions": position if model.other_attention else None}
    if members[0].table is None:
        return Group(rows, sequences, **seen), text_position.flatten(), None

    table = members[0].table
    size = table.pool.block_size
    if sequences == 1 and not table.paged:
        # The blocks are contiguous, so the slots are one run: reading them needs no gather.
        base = table.blocks[0] * size
        return Group(rows, 1, read=slice(base + first_seen, base + longest), **seen), position[0], base + position[0]
    height = -(-longest // size)
    tables = side_by_side([new.table.blocks[new.table.skipped :] for new in members], height)
    blocks = on_device(torch.frombuffer(tables, dtype=torch.int32).long().view(-1, height), device)
    slots = (blocks[:, :, None] * size + torch.arange(size, device=device)).flatten(1)[:, :longest]
    write, slots = slots.gather(1, position), slots[:, first_seen:]
    if sequences > 1:
        # Padding is masked but must be finite: 0 x NaN is NaN. A sequence's first slot is.
        slots = torch.where(everything <= position[:, -1:], slots, slots[:, :1])
    return Group(rows, sequences, read=slots.flatten(), **seen), text_position.flatten(), write.flatten()
