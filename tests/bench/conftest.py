"""What every bench measures here."""

from __future__ import annotations

import pytest

from lab.engine.engine import Engine
from tests import tiny_models


@pytest.fixture(scope="module")
def lab() -> Engine:
    return tiny_models.engine("llama", "good")
