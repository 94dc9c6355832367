"""Torch's reads and products, to measure a device's limits with."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from lab.backends.interface import Arithmetic


@dataclass(frozen=True)
class TorchArithmetic(Arithmetic):
    """As ``Arithmetic``. ``dtype``: of the numbers that are multiplied."""

    weight_bytes: int
    device: torch.device
    dtype: torch.dtype

    def read(self, size: int) -> Callable[[], object]:
        return torch.ones(size // 4, device=self.device).sum

    def product(self, size: int) -> Callable[[], object]:
        # Not constants: the rate that a chip sustains depends on how many bits change.
        a, b = torch.rand(2, size, size, device=self.device).to(self.dtype)
        return functools.partial(torch.mm, a, b, out=torch.empty_like(a))
