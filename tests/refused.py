"""Models that are not loaded: what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab import ModelLoadError, load_engine

WEIGHTS = "model.safetensors"


def words(where: Path) -> str:
    """The message, of one line, with which the model is refused."""
    with pytest.raises(ModelLoadError) as refused:
        load_engine(where, device="cpu")
    assert "\n" not in str(refused.value)
    return str(refused.value)
