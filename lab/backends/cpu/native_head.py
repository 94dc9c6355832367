"""Heads as ``step.c`` sees them, and the back ends that draft with them in C."""

from collections.abc import Sequence
from ctypes import byref, c_int32, c_void_p, pointer
from weakref import WeakKeyDictionary

import torch
from torch import nn

from lab.backends.cpu.cpu_count import threads
from lab.backends.cpu.native_model import (
    MOST_LANES,
    NativeModel,
    fits_bfloat16,
    refuse_lack_of_memory,
    unlike_config,
)
from lab.backends.cpu.native_sampler import described
from lab.backends.cpu.structs import ChainStruct, DFlashStruct, Layer, MarkovStruct, ModelStruct, PlanStruct
from lab.backends.interface import DraftTokens, HeadBackend, NewTokens
from lab.backends.torch.torch_backend import BlockHead, Sample, TorchHead
from lab.config import SamplingParams
from lab.kv_cache.storage import KVStorage
from lab.models.dflash_head import DFlashHead
from lab.models.dspark_head import DSparkHead
from lab.models.eagle3_head import Eagle3Head
from lab.models.mtp_head import MTPHead
from lab.models.state_head import StateHead
from lab.util.device_copy import joined


class NativeHead(NativeModel):
    """A head that C can compute (``head_backend``), beside a ``target`` whose output head it may share; positions up to
    ``context_length``."""

    def __init__(self, head: StateHead, target: NativeModel, context_length: int) -> None:
        config, ids, in_blocks = head.config.layer, head.target_ids.contiguous(), isinstance(head, DFlashHead)
        layers, norm = list(head.decoder) if in_blocks else [head.decoder], head.norm
        if isinstance(head, MTPHead):
            layers, norm = [head.layer.mtp_block], head.layer.post_norm
        shared = head.lm_head is target.output_head
        self._begin([linear for linear in linears(head) if not (shared and linear is head.lm_head)], target.rounded)
        self._layers, self.target, self._joins = head.layers, target, isinstance(head, MTPHead)
        self._alive.append(ids)
        with torch.inference_mode():
            cosine, sine = head.rotary(torch.zeros(1, dtype=torch.float32), torch.arange(context_length)[None])
        self._model = ModelStruct(
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=head.kv_heads,
            head_dim=head.head_dim,
            vocabulary=head.vocabulary,
            epsilon=config.rms_norm_eps,
            scaling=layers[0].self_attn.scaling,
            rounded=self.rounded,
            embedding=self._numbers(head.embed_tokens.weight),
            final_norm=self._numbers(norm.weight),
            cosine=self._numbers(cosine[0]),
            sine=self._numbers(sine[0]),
            layer=(Layer * head.layers)(*map(self._layer, layers)),
            head=target.packed_head if shared else self._linear(head.lm_head),
            target_ids=ids.data_ptr(),
            chain=None if in_blocks else pointer(self._chain(head)),
            dflash=pointer(self._taking_in(head)) if in_blocks else None,
            markov=pointer(self._table(head)) if isinstance(head, DSparkHead) else None,
        )

    def _chain(self, head: Eagle3Head | MTPHead) -> ChainStruct:
        if isinstance(head, MTPHead):
            layer = head.layer
            norms = self._numbers(layer.enorm.weight), self._numbers(layer.hnorm.weight)
            hidden_first = getattr(layer.config, "mtp_hidden_states_first", False)
            return ChainStruct(*norms, join=self._linear(layer.eh_proj), hidden_first=hidden_first, norm_output=True)
        layer, config = head.midlayer, head.config
        norms = self._numbers(layer.input_layernorm.weight), self._numbers(layer.hidden_norm.weight)
        own = {"norm_before_residual": config.norm_before_residual, "norm_output": config.norm_output}
        return ChainStruct(*norms, self._linear(head.fc), **own)

    def _taking_in(self, head: DFlashHead) -> DFlashStruct:
        return DFlashStruct(self._linear(head.fc), self._numbers(head.hidden_norm.weight))

    def _table(self, head: DSparkHead) -> MarkovStruct:
        pairs = head.markov_head
        return MarkovStruct(self._numbers(pairs.markov_w1.weight), self._linear(pairs.markov_w2))

    def take_in(self, plan: PlanStruct, states: torch.Tensor) -> None:
        """Let a pass take in ``states``, contiguous float32: of an MTP head what its block takes in, [tokens, hidden];
        of others the target's hidden states, [tokens, width]. They have to live until the pass is done."""
        setattr(plan, "fused" if self._joins else "given", states.data_ptr())

    def store_text(self, batch: Sequence[NewTokens], states: torch.Tensor, storage: KVStorage) -> None:
        """Store the keys and values that a DFlash head makes of hidden ``states`` [tokens, width] float32."""
        plan, slots, _alive = self._plan([new._replace(keep=0) for new in batch], storage)
        states = states.contiguous()
        self.take_in(plan, states)
        where = byref(self._model), self._layers, byref(slots), byref(plan)
        refuse_lack_of_memory(self._library.store_text(*where, threads()))

    def block_logits(self, blocks: Sequence[NewTokens], storage: KVStorage) -> torch.Tensor:
        """Logits of a DFlash head's blocks over its draft tokens, [sum of keep, draft tokens]."""
        return self.step(list(blocks), self._layers, storage)

    def choose_in_turn(
        self,
        logits: torch.Tensor,
        newest: torch.Tensor,
        windows: Sequence[int],
        sampling: Sequence[SamplingParams],
        u: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As ``sample``, from the logits of a DSpark head's blocks, each token by that before it. ``newest``:
        [sequences] int64, before each block."""
        tokens = torch.empty(len(logits), dtype=torch.long)
        q = torch.empty(len(logits), self._model.vocabulary, dtype=torch.float32)
        choices, _alive = described(sampling, u)
        given = c_void_p(logits.data_ptr()), (c_int32 * len(windows))(*windows), c_void_p(newest.data_ptr())
        made = byref(choices), c_void_p(tokens.data_ptr()), c_void_p(q.data_ptr())
        failed = self._library.choose_in_turn(byref(self._model), *given, len(windows), *made, threads())
        refuse_lack_of_memory(failed)
        return q, tokens

    def read(self, batch: Sequence[NewTokens], states: torch.Tensor, storage: KVStorage) -> None:
        """Store the keys and values of new tokens, of which the head takes in ``states`` (``take_in``)."""
        plan, slots, _alive = self._plan([new._replace(keep=0) for new in batch], storage)
        self.take_in(plan, states)
        where = byref(self._model), 1, byref(slots), byref(plan)
        refuse_lack_of_memory(self._library.forward(*where, c_void_p(None), threads()))


class CpuHead(TorchHead):
    """An EAGLE-3 or MTP head that C computes over a cache. Without one torch computes it."""

    reads_packed_weights = True

    def __init__(self, model: Eagle3Head | MTPHead, sample: Sample, native: NativeHead) -> None:
        super().__init__(model, sample)
        self._native = native

    def read(self, batch: Sequence[NewTokens], states: Sequence[torch.Tensor], storage: KVStorage) -> None:
        self._native.read(batch, self._taken_in(states), storage)

    def draft(
        self,
        batch: Sequence[NewTokens],
        states: Sequence[torch.Tensor],
        windows: Sequence[int],
        sampling: Sequence[SamplingParams],
        uniforms: Sequence[torch.Tensor],
        storage: KVStorage | None,
    ) -> list[DraftTokens]:
        if storage is None:
            return super().draft(batch, states, windows, sampling, uniforms, storage)
        return self._native.decode_ahead(batch, 1, storage, windows, sampling, uniforms, self._taken_in(states))

    def _taken_in(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        rows = joined(states)
        taken = self.model.fuse(rows) if isinstance(self.model, MTPHead) else self.model.normed(rows)
        return taken.contiguous()


class CpuBlockHead(BlockHead):
    """A DFlash or DSpark head that C computes."""

    reads_packed_weights = True

    def __init__(self, model: DFlashHead, sample: Sample, native: NativeHead) -> None:
        super().__init__(model, sample)
        self._native = native

    def read(self, batch: Sequence[NewTokens], states: Sequence[torch.Tensor], storage: KVStorage) -> None:
        self._native.store_text(batch, joined(states), storage)

    def _logits(self, blocks: list[NewTokens], storage: KVStorage) -> torch.Tensor:
        return self._native.block_logits(blocks, storage)

    def _one_by_one(
        self,
        logits: torch.Tensor,
        newest: torch.Tensor,
        windows: Sequence[int],
        sampling: Sequence[SamplingParams],
        u: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._native.choose_in_turn(logits, newest, windows, sampling, u)


_heads: WeakKeyDictionary[StateHead, NativeHead] = WeakKeyDictionary()


def head_backend(head: StateHead, sample: Sample, target: NativeModel, context_length: int) -> HeadBackend:
    """C for a head that it can compute, beside a ``target`` that it computes; torch for others."""
    in_blocks, config = isinstance(head, DFlashHead), head.config.layer
    exact = all(map(fits_bfloat16, linears(head))) and type(head.lm_head) is nn.Linear
    narrow = isinstance(head, DSparkHead) and head.config.markov_rank % MOST_LANES
    if not exact or narrow or unlike_config(config) or config.hidden_act != "silu":
        return (BlockHead if in_blocks else TorchHead)(head, sample)
    if head not in _heads or _heads[head].target is not target:
        _heads[head] = NativeHead(head, target, context_length)
    return (CpuBlockHead if in_blocks else CpuHead)(head, sample, _heads[head])


def linears(head: StateHead) -> list[nn.Linear]:
    """The linear layers of a head."""
    return [module for module in head.modules() if isinstance(module, nn.Linear)]
