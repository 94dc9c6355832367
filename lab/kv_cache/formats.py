"""Formats of a cache slot: the keys and values of one token, in every layer of one model.

A format is two operations, ``write(slots, k, v)`` and ``read(where)``; every format works with every block policy.
Slots are rows of a tensor, so a block is ``block_size`` consecutive rows.

Lessons 3, what the cache costs, and 4, INT8 and INT4 keys and values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from lab.errors import ConfigError


class VectorBytes(NamedTuple):
    """Bytes of one token's key, or value, in one KV head."""

    numbers: int
    scales: int


class PlainLayer:
    """Keys and values as the model computed them, passed in and out as [tokens, kv_heads, head_dim].

    ``vectors``: of a token and KV head; with 1, the key is the value too (latent attention).
    ``tensors``: everything that the slots hold, each [slots, ...].
    """

    def __init__(
        self, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device, vectors: int = 2
    ) -> None:
        self.tensors = tuple(torch.empty(slots, kv_heads, head_dim, dtype=dtype, device=device) for _ in range(vectors))

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store one row per slot. ``slots``: [tokens] int64."""
        for kept, new in zip(self.tensors, (key, value), strict=False):
            kept.index_copy_(0, slots, new)

    def read(self, where: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows at a run of slots (slice) or at any slots ([tokens] int64), in the compute dtype."""
        found = [_rows(kept, where) for kept in self.tensors]
        return found[0], found[-1]

    @staticmethod
    def vector_bytes(head_dim: int, dtype: torch.dtype) -> VectorBytes:
        return VectorBytes(head_dim * dtype.itemsize, 0)


class QuantisedLayer:
    """Small numbers, and mostly scales to multiply them by. A format says how to get both from a vector, and back."""

    @staticmethod
    def quantise(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[..., head_dim] of any float dtype -> numbers, and scales if it has any, [..., as many as it needs]."""
        raise NotImplementedError

    @staticmethod
    def dequantise(*stored: torch.Tensor) -> torch.Tensor:
        """Inverse of ``quantise``: -> [..., head_dim] float32."""
        raise NotImplementedError

    @staticmethod
    def vector_bytes(head_dim: int, dtype: torch.dtype) -> VectorBytes:
        raise NotImplementedError

    def __init__(
        self, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device, vectors: int = 2
    ) -> None:
        self._dtype, self._vectors = dtype, vectors
        # A slot's key and value lie side by side, so that both are quantised in one go.
        numbers, *scales = self.quantise(torch.zeros(vectors, kv_heads, head_dim, device=device))
        # A head's scales lie side by side, token by token. With those of the other heads between them, each of the few
        # bytes that a GPU's attention wants would cost a whole sector of 32.
        side_by_side = (one.new_empty(vectors, kv_heads, slots, one.shape[-1]).permute(2, 0, 1, 3) for one in scales)
        self.tensors = numbers.new_empty(slots, *numbers.shape), *side_by_side

    def write(self, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        new_rows = torch.stack((key, value)[: self._vectors], 1)
        for kept, new in zip(self.tensors, self.quantise(new_rows), strict=True):
            kept.index_copy_(0, slots, new)

    def read(self, where: slice | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.dequantise(*(_rows(kept, where) for kept in self.tensors)).to(self._dtype).unbind(1)
        return found[0], found[-1]


class Int8Layer(QuantisedLayer):
    """One signed byte per number, and one float32 scale per token and KV head.

    Symmetric round-to-nearest: ``scale = max|x| / 127``, ``x ~ scale * round(x / scale)`` ("absmax": Dettmers et al.,
    2208.07339), so a number is off by at most half a scale. The scale is taken over one head's vector of one token: a
    token's outliers cost no other token precision.
    """

    @staticmethod
    def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., d] of any float dtype -> ([..., d] int8, [..., 1] float32 scale). An all-zero vector gets the smallest
        normal scale: it stays zero, and nothing is divided by 0."""
        x = x.float()
        scale = (x.abs().amax(-1, keepdim=True) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        return (x / scale).round().to(torch.int8), scale

    @staticmethod
    def dequantise(numbers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return numbers * scale

    @staticmethod
    def vector_bytes(head_dim: int, dtype: torch.dtype) -> VectorBytes:
        return VectorBytes(head_dim * torch.int8.itemsize, torch.float32.itemsize)


class Int4Layer(QuantisedLayer):
    """Half a byte per number, and one bfloat16 scale per group of 32 numbers of a head's vector.

    Half a byte ranges from -8 to 7. The scale has a sign, chosen so that the number furthest from zero lands on -8, as
    in the Q4_0 format of llama.cpp; and it is wide enough for the other side to stay within 7.5, so that here too every
    number is off by at most half a scale. An offset in addition to the scale takes as many bytes if groups are twice as
    long: on the embedded pair that had the larger error.

    Steps are wide: a key that differs in its last digit, because a different number of tokens shared the forward pass,
    may be stored a whole step apart. Greedy tokens can then differ too.
    """

    @staticmethod
    def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., d] of any float dtype -> ([..., d / 2] uint8, [..., groups] bfloat16 scale). An all-zero group stays
        zero, as in INT8. Raises ConfigError if d is odd."""
        group = _group(x.shape[-1])
        x = x.float().unflatten(-1, (-1, group))
        lowest, highest = x.aminmax(dim=-1, keepdim=True)
        below, above = -lowest, highest
        scale = torch.maximum(torch.maximum(below, above) / 8, torch.minimum(below, above) / 7.5)
        # Rounding to bfloat16 reduces the scale by at most one part in 257, which must not push a number out of range.
        scale = (scale * (1 + 2**-8)).clamp_min(torch.finfo(torch.float32).tiny)
        scale = torch.where(above > below, -scale, scale).bfloat16()
        numbers = (x / scale).round() + 8
        return pack(numbers.clamp_(0, 15).to(torch.uint8).flatten(-2)), scale[..., 0]

    @staticmethod
    def dequantise(numbers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        x = unpack(numbers).float().sub_(8)
        return x.unflatten(-1, (scale.shape[-1], -1)).mul_(scale[..., None]).flatten(-2)

    @staticmethod
    def vector_bytes(head_dim: int, dtype: torch.dtype) -> VectorBytes:
        scales = head_dim // _group(head_dim)
        return VectorBytes(head_dim // 2 * torch.uint8.itemsize, scales * torch.bfloat16.itemsize)


def _group(head_dim: int) -> int:
    """Numbers that share an INT4 scale: 32, or the whole vector if 32 does not divide it."""
    refuse_odd(head_dim)
    return 32 if head_dim % 32 == 0 else head_dim


def refuse_odd(head_dim: int) -> None:
    """Raises ConfigError: numbers of half a byte leave one over."""
    if head_dim % 2:
        raise ConfigError(
            f"A kv_dtype of INT4 packs two numbers to a byte, and this model's heads have {head_dim}, an odd number. "
            "Use 'int8' or 'auto'."
        )


def pack(numbers: torch.Tensor) -> torch.Tensor:
    """[..., d] uint8 from 0 to 15, d even -> [..., d / 2] uint8: two to a byte, the first in the low half."""
    return numbers[..., 0::2] | numbers[..., 1::2] << 4


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """[..., d / 2] uint8 -> [..., d] uint8 from 0 to 15: what ``pack`` packed."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def _rows(tensor: torch.Tensor, where: slice | torch.Tensor) -> torch.Tensor:
    """A run of rows is a view; scattered rows are gathered (index_select takes a fifth of indexing's time)."""
    return tensor[where] if isinstance(where, slice) else tensor.index_select(0, where)
