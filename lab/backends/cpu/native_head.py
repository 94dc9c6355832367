"""An EAGLE-3 head as ``step.c`` sees it, and the back end that drafts with it in C."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_void_p, pointer
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from lab.backends.cpu.cpu_count import threads
from lab.backends.cpu.native_model import NativeModel, fits_bfloat16, refuse_lack_of_memory, unlike_config
from lab.backends.cpu.structs import Eagle3Struct, Layer, ModelStruct
from lab.backends.interface import DraftTokens, NewTokens
from lab.backends.torch.torch_backend import Sample, TorchHead
from lab.config import SamplingParams
from lab.kv_cache.formats import KVStorage
from lab.models.eagle3_head import Eagle3Head

FEW_ROWS = 8


class NativeHead(NativeModel):
    """A head without a ``refusal``; positions up to ``context_length``. ``rounded``: see ``NativeModel``."""

    def __init__(self, head: Eagle3Head, context_length: int, *, rounded: bool) -> None:
        layer, config = head.midlayer, head.config.layer
        self._begin([module for module in (*layer.modules(), head.lm_head) if isinstance(module, nn.Linear)], rounded)
        self._layers, self._vocabulary = 1, head.vocabulary
        with torch.inference_mode():
            cosine, sine = head.rotary(torch.zeros(1, dtype=torch.float32), torch.arange(context_length)[None])
        ids = head.target_ids.contiguous()
        self._alive.append(ids)
        own = Eagle3Struct(
            hidden_norm=self._numbers(layer.hidden_norm.weight),
            target_ids=ids.data_ptr(),
            vocabulary=head.vocabulary,
            norm_before_residual=head.config.norm_before_residual,
            norm_output=head.config.norm_output,
        )
        self._model = ModelStruct(
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=head.kv_heads,
            head_dim=head.head_dim,
            epsilon=config.rms_norm_eps,
            scaling=layer.self_attn.scaling,
            rounded=self.rounded,
            embedding=self._numbers(head.embed_tokens.weight),
            final_norm=self._numbers(head.norm.weight),
            cosine=self._numbers(cosine[0]),
            sine=self._numbers(sine[0]),
            layer=(Layer * 1)(self._layer(layer)),
            head=self._linear(head.lm_head),
            eagle3=pointer(own),
        )

    def read(self, batch: Sequence[NewTokens], fused: torch.Tensor, storage: KVStorage) -> None:
        """Store the keys and values of new tokens. ``fused``: [tokens, hidden] float32, what the head takes in."""
        plan, slots, _alive = self._plan([new._replace(keep=0) for new in batch], storage)
        plan.fused = fused.data_ptr()
        where = byref(self._model), 1, byref(slots), byref(plan)
        refuse_lack_of_memory(self._library.forward(*where, c_void_p(None), threads()))


class CpuHead(TorchHead):
    """A head that C computes over a cache. Without one torch computes it."""

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


_heads: WeakKeyDictionary[Eagle3Head, NativeHead] = WeakKeyDictionary()


def head_backend(head: Eagle3Head, sample: Sample, target: NativeModel, context_length: int) -> TorchHead:
    """C for a head that it can compute, beside a ``target`` that it computes; torch for others."""
    config = head.config.layer
    bfloat16 = all(map(fits_bfloat16, (*head.midlayer.modules(), head.lm_head)))
    if not bfloat16 or unlike_config(config) or config.hidden_act != "silu":
        return TorchHead(head, sample)
    if head not in _heads:
        _heads[head] = NativeHead(head, context_length, rounded=target.rounded)
    return CpuHead(head, sample, _heads[head])
