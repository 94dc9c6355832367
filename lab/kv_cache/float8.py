"""FP8 formats of a cache slot: eight bits with an exponent among them.

e4m3 (Micikevicius et al., 2209.05433) has a sign, 4 bits of exponent and 3 of mantissa. Where INT8's steps are equally
wide, these grow with the number: it is off by at most 1/16 of itself, whatever else its vector holds, and by at most
2^-10 near zero.
"""

from __future__ import annotations

import torch

from lab.kv_cache.formats import QuantisedLayer, VectorBytes

E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(E4M3).max
"""448. The format has no infinity: what is larger becomes this."""


class Float8Layer(QuantisedLayer):
    """One e4m3 byte per number, with the scale 1 for the whole tensor: vLLM's ``fp8`` (``fp8_e4m3``) for a model that
    was not calibrated. Numbers beyond 448 are cut off."""

    @staticmethod
    def quantise(x: torch.Tensor) -> tuple[torch.Tensor]:
        """[..., d] of any float dtype -> [..., d] uint8. An infinity becomes NaN: it must be noticed."""
        x = x.float()
        return (_bytes(torch.where(x.isinf(), torch.nan, x)),)

    @staticmethod
    def dequantise(numbers: torch.Tensor) -> torch.Tensor:
        return numbers.view(E4M3).float()

    @staticmethod
    def vector_bytes(head_dim: int, dtype: torch.dtype) -> VectorBytes:
        return VectorBytes(head_dim * E4M3.itemsize, 0)


class Float8HeadLayer(QuantisedLayer):
    """One e4m3 byte per number, and one float32 scale per token and KV head, with which the largest number is 448:
    vLLM's ``fp8_per_token_head``. No number is too large, and fewer are near zero."""

    @staticmethod
    def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., d] of any float dtype -> ([..., d] uint8, [..., 1] float32 scale). An all-zero vector stays zero."""
        x = x.float()
        scale = (x.abs().amax(-1, keepdim=True) / LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
        return _bytes(x / scale), scale

    @staticmethod
    def dequantise(numbers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return numbers.view(E4M3).float() * scale

    @staticmethod
    def vector_bytes(head_dim: int, dtype: torch.dtype) -> VectorBytes:
        return VectorBytes(head_dim * E4M3.itemsize, torch.float32.itemsize)


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """Rounded to e4m3, as uint8: torch copies no e4m3 by index on a CPU."""
    return x.clamp(-LARGEST, LARGEST).to(E4M3).view(torch.uint8)
