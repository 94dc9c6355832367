"""What this machine can compute with, found out without loading a model: for pages that offer only what works."""

from __future__ import annotations

import functools

import torch

from lab.errors import ConfigError
from lab.kv_cache.attention import BACKENDS, refuse_sdpa
from lab.models.devices import best_device

HEAD = 64
"""A common head size: no back end here takes this one but not others."""


@functools.cache
def has_gpu() -> bool:
    return best_device() != "cpu"


@functools.cache
def prompt_attention() -> tuple[str, ...]:
    """Torch's attention back ends that run here. On a GPU all are offered: whether one takes a model's dtype is known
    only when the model is loaded, and one that does not is refused in a sentence."""
    return tuple(BACKENDS) if has_gpu() else tuple(filter(_runs_on_cpu, BACKENDS))


def _runs_on_cpu(choice: str) -> bool:
    try:
        refuse_sdpa(choice, torch.device("cpu"), torch.float32, HEAD)
    except ConfigError:
        return False
    return True
