"""Explains failures in sentences for the user."""

from __future__ import annotations

from lab.errors import LabError
from lab.util.device_memory import is_out_of_memory
from lab.util.messages import error_summary

NOT_FINITE = "The model's output is not finite. Try dtype='float32', or other weights."
FAULTS = (
    "an illegal memory access was encountered",
    "an illegal instruction was encountered",
    "misaligned address",
    "device-side assert triggered",
    "unspecified launch failure",
)
"""What CUDA calls the faults of a kernel after which a process gets nothing but the same error (CUDA Runtime API,
"Data types used by CUDA Runtime", cudaError). They surface later, where the host waits for the GPU."""


def explain(error: Exception) -> str:
    """A sentence about an error, for the user."""
    if isinstance(error, LabError):
        return str(error)
    if is_out_of_memory(error):
        return "The device ran out of memory. Use fewer blocks, a shorter prompt or a smaller model."
    if any(fault in str(error) for fault in FAULTS):
        return (
            f"The GPU met a fault after which this process can no longer use it ({error_summary(error)}). Start the "
            "program again."
        )
    return f"The engine failed in this step ({type(error).__name__}: {error})."
