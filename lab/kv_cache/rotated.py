"""INT4 after a rotation, which spreads a vector's outliers over all its numbers."""

from __future__ import annotations

import functools
import random

import torch

from lab.kv_cache.formats import QuantisedLayer, VectorBytes, pack, refuse_odd, unpack


class RotatedInt4Layer(QuantisedLayer):
    """Half a byte per number of the rotated vector; a scale and a zero point per token and KV head: vLLM's
    ``int4_per_token_head``.

    One number far from zero makes the steps of its whole vector wide. After a random rotation (QuaRot: Ashkboos et al.,
    2404.00456) no number is far from the others, so that one scale serves them all. The zero point lets the sixteen
    values lie between the vector's least and greatest number, wherever these are.

    Rotating keeps lengths: where a rotated number is off by half a scale at most, the vector is by sqrt(d) times that.
    vLLM rotates queries instead of rotating keys back.
    """

    @staticmethod
    def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., d] of any float dtype -> ([..., d / 2] uint8, [..., 2] bfloat16 scale and zero point). An all-zero
        vector stays zero. Raises ConfigError if d is odd."""
        refuse_odd(x.shape[-1])
        x = x.float() @ rotation(x.shape[-1]).to(x.device)
        lowest, highest = x.aminmax(dim=-1, keepdim=True)
        # Zero is among the sixteen values. As in INT4, rounding the scale must not push a number out of range.
        scale = (highest.clamp_min(0) - lowest.clamp_max(0)) / 15 * (1 + 2**-8)
        scale = scale.clamp_min(torch.finfo(torch.float32).tiny).bfloat16()
        zero = (-lowest.clamp_max(0) / scale).round()
        numbers = ((x / scale).round() + zero).clamp_(0, 15)
        return pack(numbers.to(torch.uint8)), torch.cat((scale, zero.bfloat16()), -1)

    @staticmethod
    def dequantise(numbers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        scale, zero = scale.float().split(1, -1)
        x = unpack(numbers).float().sub_(zero).mul_(scale)
        return x @ rotation(x.shape[-1]).to(x.device).T

    @staticmethod
    def vector_bytes(head_dim: int, dtype: torch.dtype) -> VectorBytes:
        refuse_odd(head_dim)
        return VectorBytes(head_dim // 2 * torch.uint8.itemsize, 2 * torch.bfloat16.itemsize)


@functools.cache
def rotation(dim: int) -> torch.Tensor:
    """[dim, dim] float32, orthogonal: random signs, then Hadamard's matrix over runs of 2^k numbers, where 2^k is the
    largest power of two that divides ``dim``, as in vLLM."""
    run = dim & -dim
    hadamard = torch.ones(1, 1)
    while len(hadamard) < run:
        hadamard = torch.cat((torch.cat((hadamard, hadamard), 1), torch.cat((hadamard, -hadamard), 1)))
    signs = torch.tensor(random.Random(dim).choices((-1.0, 1.0), k=dim))
    return signs[:, None] * torch.block_diag(*[hadamard] * (dim // run)) / run**0.5
