"""Explains failures in sentences for the user."""

from __future__ import annotations

from lab.config import LabError
from lab.device_memory import is_out_of_memory

NOT_FINITE = "The model's output is not finite. Try dtype='float32', or other weights."


def explain(error: Exception) -> str:
    """A sentence about an error, for the user."""
    if isinstance(error, LabError):
        return str(error)
    if is_out_of_memory(error):
        return "The device ran out of memory. Use fewer blocks, a shorter prompt or a smaller model."
    return f"The engine failed in this step ({type(error).__name__}: {error})."
