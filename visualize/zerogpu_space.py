"""What a Hugging Face Space says of itself."""

from __future__ import annotations

from collections.abc import Mapping

from visualize.url_settings import SWITCHED


def borrows_a_gpu(environment: Mapping[str, str]) -> bool:
    """Whether this is the server of a ZeroGPU Space."""
    return SWITCHED.get(environment.get("SPACES_ZERO_GPU", "").lower(), False)
