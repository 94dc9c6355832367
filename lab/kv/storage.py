"""What a cache slot holds: the keys and values of one token, in every layer of one model.

A format is two operations, ``write(slots, k, v)`` and ``read(where)``; every
format works with every block policy. Slots are rows of a tensor, so a block is
``block_size`` rows side by side.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch

KVFormat = Literal["auto", "int8"]


class LayerStorage(Protocol):
    """One layer's slots. Keys and values come and go as [tokens, kv_heads, head_dim].

    ``tensors``: all there is to a slot, each [slots, ...].
    """

    tensors: tuple[torch.Tensor, ...]

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store one row a slot. ``slots``: [tokens] int64."""

    def read(self, where: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows at a run of slots (slice) or at any slots ([tokens] int64), in the compute dtype."""


class NativeLayer:
    """Keys and values as the model computed them."""

    def __init__(self, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self._key = torch.empty(slots, kv_heads, head_dim, dtype=dtype, device=device)
        self._value = torch.empty_like(self._key)
        self.tensors = self._key, self._value

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        self._key.index_copy_(0, slots, key)
        self._value.index_copy_(0, slots, value)

    def read(self, where: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _rows(self._key, where), _rows(self._value, where)

    @staticmethod
    def bytes_per_token(kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        return 2 * kv_heads * head_dim * dtype.itemsize


class Int8Layer:
    """One signed byte a number, and one float32 scale per token and KV head.

    Symmetric round-to-nearest: ``scale = max|x| / 127``, ``x ~ scale * round(x / scale)``,
    so a number is off by at most half a scale. The scale is taken over one
    head's vector of one token: a token's outliers cost no other token its precision.
    """

    def __init__(self, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._key = torch.empty(slots, kv_heads, head_dim, dtype=torch.int8, device=device)
        self._value = torch.empty_like(self._key)
        self._key_scale = torch.empty(slots, kv_heads, 1, dtype=torch.float32, device=device)
        self._value_scale = torch.empty_like(self._key_scale)
        self.tensors = self._key, self._value, self._key_scale, self._value_scale

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        for x, whole, scale in ((key, self._key, self._key_scale), (value, self._value, self._value_scale)):
            q, s = quantise_int8(x)
            whole.index_copy_(0, slots, q)
            scale.index_copy_(0, slots, s)

    def read(self, where: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        key = _rows(self._key, where) * _rows(self._key_scale, where)
        value = _rows(self._value, where) * _rows(self._value_scale, where)
        return key.to(self._dtype), value.to(self._dtype)

    @staticmethod
    def bytes_per_token(kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        return 2 * kv_heads * (head_dim * torch.int8.itemsize + torch.float32.itemsize)


def _rows(tensor: torch.Tensor, where: slice | torch.Tensor) -> torch.Tensor:
    """A run of rows is a view; scattered rows are gathered (index_select takes a fifth of indexing's time)."""
    return tensor[where] if isinstance(where, slice) else tensor.index_select(0, where)


def quantise_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., d] of any float dtype -> ([..., d] int8, [..., 1] float32 scale).

    An all-zero vector gets the smallest normal scale: it stays zero, and nothing is divided by 0.
    """
    x = x.float()
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp_min(torch.finfo(torch.float32).tiny)
    return (x / scale).round().to(torch.int8), scale


FORMATS: dict[KVFormat, type[NativeLayer] | type[Int8Layer]] = {"auto": NativeLayer, "int8": Int8Layer}


class KVStorage:
    """The slots of one model: one ``LayerStorage`` a layer."""

    def __init__(
        self,
        kv_format: KVFormat,
        slots: int,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        form = FORMATS[kv_format]
        self.layers: list[LayerStorage] = [form(slots, kv_heads, head_dim, dtype, device) for _ in range(layers)]

    def copy(self, source: slice, destination: slice) -> None:
        """Copy a run of slots onto another of equal length, as they are stored."""
        for layer in self.layers:
            for tensor in layer.tensors:
                tensor[destination] = tensor[source]


def bytes_per_token(kv_format: KVFormat, *, layers: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of one token in all layers: layers x 2 x kv_heads x (head_dim x bytes a number + bytes of a scale)."""
    return layers * FORMATS[kv_format].bytes_per_token(kv_heads, head_dim, dtype)
