"""Triton kernels launched on the right device, with whatever goes wrong as one kind of error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lab.backends.gpu import paged_attention, store_kv
from lab.backends.interface import KernelError
from lab.kv_cache.attention_metadata import BlockPlan
from lab.util.device_memory import is_out_of_memory
from lab.util.messages import error_summary


def attend_by_kernels(
    layer_idx: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    plan: BlockPlan,
    scaling: float | None = None,
    *,
    stored: bool = False,
) -> torch.Tensor:
    """Store the new keys and values, then attend: query [N, heads, d]; key, value [N, kv_heads, d] -> [N, heads, d].

    ``stored``: they are stored already.

    Raises:
        KernelError: see there.
    """
    layer = plan.storage.layers[layer_idx]
    with launching(query):
        if not stored:
            store_kv.store(layer, plan.write, key, value)
        return paged_attention.attend(layer, query, plan, scaling)


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
