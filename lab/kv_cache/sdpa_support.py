"""Refuses a back end of torch's attention that does not run here."""

from __future__ import annotations

import functools
import warnings

import torch

from lab.errors import ConfigError
from lab.kv_cache.attention import attend_by
from lab.kv_cache.attention_metadata import SdpaChoice


@functools.cache
def refuse_sdpa(choice: SdpaChoice, device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    """Refuse a back end that does not run here, by trying it on a few numbers.

    Raises:
        ConfigError: names the dtype, device and head size that it does not run with.
    """
    if choice == "auto":
        return
    try:
        with warnings.catch_warnings():  # they say why each back end was not taken; the error below suffices
            warnings.simplefilter("ignore")
            for seen in (8, 16):
                key = torch.zeros(seen, 1, head_dim, dtype=dtype, device=device)
                attend_by(choice, key[:8].transpose(0, 1), key, key, None)
    except RuntimeError as error:
        raise ConfigError(
            f"prefill_attention={choice!r} cannot be computed here: torch has no such attention for "
            f"{str(dtype).removeprefix('torch.')} on {device} with heads of {head_dim}. Choose 'auto', or 'math', "
            "which runs everywhere."
        ) from error
