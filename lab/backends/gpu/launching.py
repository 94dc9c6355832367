"""Launches of Triton's kernels: on which device, in the interpreter or not, and before the kernel ahead has ended.

Programmatic dependent launch (NVIDIA, CUDA C++ Programming Guide), on GPUs of compute capability 9.0 and later: a
kernel's first and last microseconds leave a GPU's memory idle, while programs start and look up what to read, and the
last ones compute what has arrived. If the kernels ahead allow it (``let_next_begin``), the next one's programs start
meanwhile, as soon as there is room for them, and do what depends on no other kernel. Then each has to wait for the
kernel ahead to have ended (``wait_for_previous``) before it reads what a kernel has written, and before it writes
anything. So a kernel has ended only after all that came before it, whenever it began. One that was not launched with
``early`` begins when the kernel ahead has ended, as always.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from lab.backends.interface import KernelError
from lab.util.device_memory import is_out_of_memory
from lab.util.messages import error_summary


@triton.jit
def _kernel():
    pass


INTERPRETED = not isinstance(_kernel, triton.JITFunction)
"""Whether TRITON_INTERPRET=1 was set when this file was imported: the kernels then run in Python, on CPU tensors."""


@functools.cache
def multiplied_in(dtype: torch.dtype) -> tl.dtype:
    """Dtype in which a kernel multiplies matrices of ``dtype``: the same, but the interpreter multiplies bfloat16
    wrongly (triton-lang/triton#11584)."""
    if INTERPRETED and dtype == torch.bfloat16:
        return tl.float32
    return getattr(tl, str(dtype).removeprefix("torch."))


@functools.cache
def early(device: torch.device) -> dict[str, bool]:
    """Options of a launch, the kernel's own EARLY among them."""
    if INTERPRETED or torch.version.hip or device.type != "cuda" or torch.cuda.get_device_capability(device) < (9, 0):
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True}


@triton.jit
def let_next_begin(EARLY: tl.constexpr):
    """The next kernel may begin once all programs of this one have come here, or ended."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(EARLY: tl.constexpr):
    """Go on when the kernel ahead has ended and what it wrote can be read."""
    if EARLY:
        gdc_wait()


@triton.jit
def fetch(lines, EARLY: tl.constexpr):
    """Ask for the 128 bytes at each of these addresses, to be found in the GPU's own cache when they are read."""
    if EARLY:
        asm: tl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
        tl.inline_asm_elementwise(asm, "=r,l", [lines], tl.int32, is_pure=False, pack=1)


@contextmanager
def launching(on: torch.Tensor) -> Iterator[None]:
    """Make Triton launch on the device of ``on``, and turn whatever is wrong with a kernel into a ``KernelError``. That
    memory ran out stays what it is: the reference would take more."""
    try:
        with torch.cuda.device_of(on):
            yield
    except Exception as error:
        if isinstance(error, KernelError) or is_out_of_memory(error):
            raise
        raise KernelError(error_summary(error)) from error
