"""The reads and products of the step in C, to measure a processor's limits with."""

from collections.abc import Callable
from ctypes import byref, c_int32, c_int64, c_void_p
from dataclasses import dataclass, field

import torch

from lab.backends.cpu.build import library
from lab.backends.cpu.cpu_count import threads
from lab.backends.cpu.structs import Linear, in_large_pages, pack
from lab.backends.interface import Arithmetic


@dataclass(frozen=True)
class CpuArithmetic(Arithmetic):
    """As ``Arithmetic``. ``rounded``: products of bfloat16, by instructions that the processor has for them."""

    weight_bytes: int
    rounded: bool
    device: torch.device = field(default=torch.device("cpu"), init=False)

    def read(self, size: int) -> Callable[[], object]:
        compiled, buffer = library(), in_large_pages(size // 2).fill_(1)
        return lambda: compiled.read_all(c_void_p(buffer.data_ptr()), c_int64(size), threads())

    def product(self, size: int) -> Callable[[], object]:
        compiled = library()
        x, weight, y = torch.rand(size, size), torch.rand(size, size), torch.empty(size, size)
        packed = pack(weight, c_int32.in_dll(compiled, "vector_lanes").value)
        linear = Linear(packed.data_ptr(), None, size, size)

        def multiply(packed: torch.Tensor = packed) -> torch.Tensor:
            numbers = c_void_p(x.data_ptr()), c_void_p(y.data_ptr())
            if compiled.multiply(byref(linear), self.rounded, size, *numbers, threads()):
                raise MemoryError("no memory for a product")
            return y

        return multiply
