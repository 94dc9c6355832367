"""Heads as ``step.c`` sees them, and the back ends that draft with them in C."""

from collections.abc import Sequence
from ctypes import byref, c_void_p, pointer
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from lab.backends.cpu.cpu_count import threads
from lab.backends.cpu.native_model import NativeModel, fits_bfloat16, refuse_lack_of_memory, unlike_config
from lab.backends.cpu.structs import DFlashStruct, Eagle3Struct, Layer, ModelStruct
from lab.backends.interface import DraftTokens, HeadBackend, NewTokens
from lab.backends.torch.torch_backend import BlockHead, Sample, TorchHead
from lab.config import SamplingParams
from lab.kv_cache.storage import KVStorage
from lab.models.dflash_head import DFlashHead
from lab.models.eagle3_head import Eagle3Head
from lab.models.mtp_head import MTPHead
from lab.models.state_head import StateHead

FEW_ROWS = 8


class NativeHead(NativeModel):
    """A head without a ``refusal``; positions up to ``context_length``. ``rounded``: see ``NativeModel``."""

    def __init__(self, head: StateHead, context_length: int, *, rounded: bool) -> None:
        config, eagle3 = head.config.layer, isinstance(head, Eagle3Head)
        layers = [head.decoder] if eagle3 else list(head.decoder)
        parts = (*layers, head.lm_head) if eagle3 else (*layers, head.lm_head, head.fc)
        self._begin(
            [module for part in parts for module in part.modules() if isinstance(module, nn.Linear)],
            rounded,
        )
        self._layers, self._vocabulary = head.layers, head.vocabulary if eagle3 else head.lm_head.out_features
        with torch.inference_mode():
            cosine, sine = head.rotary(torch.zeros(1, dtype=torch.float32), torch.arange(context_length)[None])
        self._model = ModelStruct(
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=head.kv_heads,
            head_dim=head.head_dim,
            epsilon=config.rms_norm_eps,
            scaling=layers[0].self_attn.scaling,
            rounded=self.rounded,
            embedding=self._numbers(head.embed_tokens.weight),
            final_norm=self._numbers(head.norm.weight),
            cosine=self._numbers(cosine[0]),
            sine=self._numbers(sine[0]),
            layer=(Layer * head.layers)(*map(self._layer, layers)),
            head=self._linear(head.lm_head),
            eagle3=pointer(self._own(head)) if eagle3 else None,
            dflash=None if eagle3 else pointer(self._taking_in(head)),
        )

    def _taking_in(self, head: DFlashHead) -> DFlashStruct:
        return DFlashStruct(self._linear(head.fc), self._numbers(head.hidden_norm.weight))

    def _own(self, head: Eagle3Head) -> Eagle3Struct:
        ids = head.target_ids.contiguous()
        self._alive.append(ids)
        return Eagle3Struct(
            hidden_norm=self._numbers(head.midlayer.hidden_norm.weight),
            target_ids=ids.data_ptr(),
            vocabulary=head.vocabulary,
            norm_before_residual=head.config.norm_before_residual,
            norm_output=head.config.norm_output,
        )

    def store_text(self, batch: Sequence[NewTokens], states: torch.Tensor, storage: KVStorage) -> None:
        """Store the keys and values that a DFlash head makes of hidden ``states`` [tokens, width] float32."""
        plan, slots, _alive = self._plan([new._replace(keep=0) for new in batch], storage)
        plan.fused = states.data_ptr()
        where = byref(self._model), self._layers, byref(slots), byref(plan)
        refuse_lack_of_memory(self._library.store_text(*where, threads()))

    def block_logits(self, blocks: Sequence[NewTokens], storage: KVStorage) -> torch.Tensor:
        """Logits of a DFlash head's blocks over its draft tokens, [sum of keep, draft tokens]."""
        return self.step(list(blocks), self._layers, storage)

    def read(self, batch: Sequence[NewTokens], fused: torch.Tensor, storage: KVStorage) -> None:
        """Store the keys and values of new tokens. ``fused``: [tokens, hidden] float32, what the head takes in."""
        plan, slots, _alive = self._plan([new._replace(keep=0) for new in batch], storage)
        plan.fused = fused.data_ptr()
        where = byref(self._model), 1, byref(slots), byref(plan)
        refuse_lack_of_memory(self._library.forward(*where, c_void_p(None), threads()))


class CpuHead(TorchHead):
    """An EAGLE-3 head that C computes over a cache. Without one torch computes it."""

    reads_packed_weights = True

    def __init__(self, model: Eagle3Head, sample: Sample, native: NativeHead) -> None:
        super().__init__(model, sample)
        self._native = native

    def read(self, batch: Sequence[NewTokens], states: Sequence[torch.Tensor], storage: KVStorage) -> None:
        self._native.read(batch, self._fused(states), storage)

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
        u = pad_sequence(uniforms, batch_first=True)
        ahead = self._native.decode_ahead(batch, 1, storage, windows, sampling, u, self._fused(states))
        return [DraftTokens(t[:w], q[:w]) for t, q, w in zip(*ahead, windows, strict=True)]

    def _fused(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """[tokens, hidden]. A few rows are multiplied one by one: for several, torch wakes its threads and waits for
        them, which takes milliseconds where other programs are running."""
        rows = torch.cat(list(states))
        few = len(rows) <= FEW_ROWS
        return torch.stack([self.model.fuse(row) for row in rows]) if few and len(rows) else self.model.fuse(rows)


class CpuBlockHead(BlockHead):
    """A DFlash or DSpark head that C computes, but for what DSpark adds to the logits."""

    reads_packed_weights = True

    def __init__(self, model: DFlashHead, sample: Sample, native: NativeHead) -> None:
        super().__init__(model, sample)
        self._native = native

    def read(self, batch: Sequence[NewTokens], states: Sequence[torch.Tensor], storage: KVStorage) -> None:
        self._native.store_text(batch, torch.cat(list(states)), storage)

    def _logits(self, blocks: list[NewTokens], storage: KVStorage) -> torch.Tensor:
        return self._native.block_logits(blocks, storage)


_heads: WeakKeyDictionary[StateHead, NativeHead] = WeakKeyDictionary()


def head_backend(head: StateHead, sample: Sample, target: NativeModel, context_length: int) -> HeadBackend:
    """C for a head that it can compute, beside a ``target`` that it computes; torch for others."""
    if isinstance(head, MTPHead):
        return TorchHead(head, sample)
    config, eagle3 = head.config.layer, isinstance(head, Eagle3Head)
    bfloat16 = all(map(fits_bfloat16, (*head.decoder.modules(), head.lm_head, *([] if eagle3 else [head.fc]))))
    if not bfloat16 or unlike_config(config) or config.hidden_act != "silu" or type(head.lm_head) is not nn.Linear:
        return TorchHead(head, sample) if eagle3 else BlockHead(head, sample)
    if head not in _heads:
        _heads[head] = NativeHead(head, context_length, rounded=target.rounded)
    return (CpuHead if eagle3 else CpuBlockHead)(head, sample, _heads[head])
