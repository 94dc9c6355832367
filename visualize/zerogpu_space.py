"""The kind of Hugging Face Space that this is."""

from __future__ import annotations

from collections.abc import Mapping

from visualize.url_settings import SWITCHED


def borrows_a_gpu(environment: Mapping[str, str]) -> bool:
    """True on the server of a ZeroGPU Space."""
    return SWITCHED.get(environment.get("SPACES_ZERO_GPU", "").lower(), False)
