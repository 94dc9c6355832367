"""TurboQuant: three bits a number, from a codebook for what a rotated vector looks like."""

import torch

from lab.errors import ConfigError
from lab.kv_cache.formats import QuantisedLayer, VectorBytes
from lab.kv_cache.rotated import rotation

LEVELS = (0.2451, 0.7560, 1.3439, 2.1520)
"""With their negatives, the eight values by which a normally distributed number is told with the least mean square
error (Max, "Quantizing for minimum distortion", 1960, table I; a test computes them again)."""


class TurboQuantLayer(QuantisedLayer):
    """Three bits per number of the rotated vector, and its length: vLLM's ``turboquant_3bit_nc``, but for values, which
    vLLM does not rotate.

    After a random rotation the numbers of a vector of length sqrt(d) are nearly normally distributed, whatever they
    were before. So one codebook, which nothing has to be measured for, serves all vectors (Zandieh et al., 2504.19874,
    algorithm 1; their second step, a bit for the sign of what is left, is omitted as in vLLM). Rounding to the codebook
    shortens a vector: the stored length is such that what is read back is as long as it was ("nc": norm correction).
    """

    @staticmethod
    def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., d] of any float dtype -> ([..., 3 d / 8] uint8, [..., 1] bfloat16 factor). An all-zero vector stays
        zero. Raises ConfigError if 8 does not divide d."""
        _refuse(x.shape[-1])
        x = x.float() @ rotation(x.shape[-1]).to(x.device)
        norm = x.norm(dim=-1, keepdim=True)
        codebook = _codebook(x.device)
        numbers = torch.bucketize(x * (x.shape[-1] ** 0.5 / norm.clamp_min(1e-30)), (codebook[1:] + codebook[:-1]) / 2)
        factor = norm / codebook[numbers].norm(dim=-1, keepdim=True)
        return _pack(numbers), factor.bfloat16()

    @staticmethod
    def dequantise(numbers: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        x = _codebook(numbers.device)[_unpack(numbers)] * factor.float()
        return x @ rotation(x.shape[-1]).to(x.device).T

    @staticmethod
    def vector_bytes(head_dim: int, dtype: torch.dtype) -> VectorBytes:
        _refuse(head_dim)
        return VectorBytes(3 * head_dim // 8, torch.bfloat16.itemsize)


def _codebook(device: torch.device) -> torch.Tensor:
    """[8] float32, ascending."""
    levels = torch.tensor(LEVELS, device=device)
    return torch.cat((-levels.flip(0), levels))


def _pack(numbers: torch.Tensor) -> torch.Tensor:
    """[..., d] from 0 to 7 -> [..., 3 d / 8] uint8: eight to three bytes, the first in the lowest bits."""
    words = (numbers.unflatten(-1, (-1, 8)) << _places(8, 3, numbers.device)).sum(-1, keepdim=True)
    return (words >> _places(3, 8, numbers.device)).bitwise_and_(255).to(torch.uint8).flatten(-2)


def _unpack(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of ``_pack``: int64."""
    words = (packed.unflatten(-1, (-1, 3)).long() << _places(3, 8, packed.device)).sum(-1, keepdim=True)
    return (words >> _places(8, 3, packed.device)).bitwise_and_(7).flatten(-2)


def _places(count: int, bits: int, device: torch.device) -> torch.Tensor:
    return torch.arange(0, count * bits, bits, device=device)


def _refuse(head_dim: int) -> None:
    if head_dim % 8:
        raise ConfigError(
            f"kv_dtype='turboquant_3bit_nc' packs eight numbers to three bytes, and this model's heads have "
            f"{head_dim}, which 8 does not divide. Use 'int8' or 'auto'."
        )
