"""Compiles the kernels for a GPU that need not be there: ``python -m tests.kv.compile_kernels 90``.

Triton brings its own assembler, so everything up to the machine code is done; only the launch is left out.
Prints a line for each kernel: its name, and its bytes of shared memory.
"""

from __future__ import annotations

import sys
from itertools import product
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget

from lab.kv import attend_kernel, store_kernel
from lab.kv.storage import FORMATS, KVStorage


def compile_only(self: triton.JITFunction, *args: object, grid: object, warmup: bool, **kwargs: object) -> None:
    binary = run(self, *args, grid=grid, warmup=True, **kwargs)
    assert binary.asm["cubin"]
    print(self.__name__, binary.metadata.shared)


run, triton.JITFunction.run = triton.JITFunction.run, compile_only
target = GPUTarget("cuda", int(sys.argv[1]), 32)
triton.runtime.driver.set_active(
    SimpleNamespace(
        get_current_target=lambda: target, get_current_device=lambda: 0, get_current_stream=lambda device: 0
    )
)
for kv_format, dtype in [*product(FORMATS, [torch.bfloat16]), ("auto", torch.float32), ("int8", torch.float16)]:
    storage = KVStorage(kv_format, 32, layers=1, kv_heads=2, head_dim=128, dtype=dtype, device=torch.device("cpu"))
    layer = storage.layers[0]
    store_kernel.store(layer, torch.arange(20), *torch.randn(2, 20, 2, 128, dtype=dtype))
    for new, splits in ((1, 8), (20, 1)):
        plan = SimpleNamespace(
            starts=torch.tensor([0, new]),
            lengths=torch.tensor([20]),
            tables=torch.tensor([[0, 1]]),
            block_size=16,
            longest_new=new,
            longest=20,
        )
        attend_kernel.attend(layer, torch.randn(new, 8, 128, dtype=dtype), plan, splits=splits)
