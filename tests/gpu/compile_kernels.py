"""Compiles the kernels for a GPU that need not be present: ``python -m tests.gpu.compile_kernels 90``.

Triton brings its own assembler, so everything up to the machine code is done; only the launch is left out.
Prints a line for each kernel: its name, the rows of a tile (0: it has none), its warps, its bytes of shared memory, per
thread the registers and the bytes spilled from them, and how many loads, stores and requests for lines come before it
waits for the kernel ahead (-1: it does not wait). For attention there follows the KV format.
"""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget

from lab.backends.gpu import fused_kernels as kernels
from lab.backends.gpu import fused_product as products
from lab.backends.gpu import paged_attention as attend_kernel
from lab.backends.gpu import store_kv as store_kernel
from lab.backends.gpu.fused_kernels import rms_norm, rotate, swiglu
from lab.backends.gpu.fused_product import add_product, gated_product, normed_product
from lab.backends.gpu.softmax import softmax
from lab.kv_cache.attention_metadata import Scores
from lab.kv_cache.storage import KERNEL_FORMATS, KVStorage


def compile_only(self: triton.JITFunction, *args: object, grid: object, warmup: bool, **kwargs: object) -> None:
    binary = run(self, *args, grid=grid, warmup=True, **kwargs)
    with NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary.asm["cubin"])
        shown = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    ahead, waits, _ = binary.asm["ptx"].partition("griddepcontrol.wait")
    ahead = [len(re.findall(kind, ahead)) if waits else -1 for kind in AHEAD]
    registers = re.search(r"REG:(\d+) STACK:(\d+)", shown).groups()
    form = [kwargs["FORMAT"]] if "COLUMNS" in kwargs else []
    rows = kwargs.get("ROWS", 0)
    print(self.__name__, rows, kwargs["num_warps"], binary.metadata.shared, *registers, *ahead, *form)


AHEAD = r"ld\.global|cp\.async", r"st\.global", r"prefetch\.global"
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
run, triton.JITFunction.run = triton.JITFunction.run, compile_only
target = GPUTarget("cuda", int(sys.argv[1]), 32)
triton.runtime.driver.set_active(
    SimpleNamespace(
        get_current_target=lambda: target, get_current_device=lambda: 0, get_current_stream=lambda device: 0
    )
)
attend_kernel._takes_few_columns = lambda device: target.arch // 10 not in (10, 11)
if target.arch >= 90:
    for module in attend_kernel, store_kernel, kernels, products:
        module.early = lambda device: {"EARLY": True, "launch_pdl": True}
steps = (1, 8), (20, 1)  # new tokens and splits
kinds = [*product(KERNEL_FORMATS, [torch.bfloat16], steps), ("auto", torch.float32, steps[1])]
for kv_format, dtype, (new, splits) in kinds:
    storage = KVStorage(kv_format, 32, layers=1, kv_heads=2, head_dim=128, dtype=dtype, device=torch.device("cpu"))
    layer = storage.layers[0]
    store_kernel.store(layer, torch.arange(20, dtype=torch.int32), *torch.randn(2, 20, 2, 128, dtype=dtype))
    plan = SimpleNamespace(
        starts=torch.tensor([0, new], dtype=torch.int32),
        lengths=torch.tensor([20], dtype=torch.int32),
        tables=torch.tensor([[0, 1]], dtype=torch.int32),
        block_size=16,
        longest_new=new,
        longest=20,
    )
    query = torch.randn(new, 8, 128, dtype=dtype)
    whole = Scores(window=9, softcap=2.0, sinks=torch.zeros(8, dtype=dtype))
    for scores in (whole, Scores()) if kv_format == "auto" else (whole,):  # which needs the most registers
        attend_kernel.attend(layer, query, plan, scores=scores, splits=splits)
x, weight = torch.randn(2, 4096).bfloat16(), torch.randn(4096).bfloat16()  # as wide as a Llama 8B
matrix = torch.randn(64, 4096).bfloat16()
for few, bias in ((x, None), (x[:1], weight[:64])):  # a single row is compiled separately
    normed_product(few, weight, 1e-5, matrix, bias)
    gated_product(few, weight, 1e-5, matrix)
    add_product(few[:, :64], few, matrix)
rms_norm(x, weight, 1e-5)
swiglu(torch.randn(2, 2 * 14336).bfloat16())
softmax(torch.randn(1, 128256))
for norms in (None, (weight[:128], weight[:128])):
    shape = {"kv_heads": 8, "head_dim": 128, "dtype": torch.bfloat16}
    layer = KVStorage("auto", 32, layers=1, **shape, device=torch.device("cpu")).layers[0]
    for stored in ((), (layer, torch.arange(2, dtype=torch.int32))):
        qkv, angles = torch.randn(2, 48 * 128).bfloat16(), torch.randn(2, 2, 128).bfloat16()
        rotate(qkv, 32, 8, *angles, norms, 1e-6, *stored)
