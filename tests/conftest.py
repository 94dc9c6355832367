"""Where there is no GPU, Triton's kernels run in its interpreter, which it asks for when it is first imported.

One thread for torch, here and in the processes that tests start: the models of the tests are so small that two are
slower than one, and where something else runs too, two wait for each other, at ten times the cost. No deadline for
hypothesis's examples, nor for making them up: how long that takes says how busy the machine is.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import random
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

gc.disable()
os.environ.setdefault("OMP_NUM_THREADS", "1")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if importlib.util.find_spec("triton"):
        importlib.import_module("tests.interpreted")

torch.set_num_threads(1)
settings.register_profile("lab", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lab")


def pytest_collection_finish() -> None:
    """What has been imported stays: collecting garbage need not look through it, a third of a second each time, and
    only begins here."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else what is left at the end passes for leaked


@pytest.fixture(autouse=True)
def _denormals() -> Iterator[None]:
    """Training flushes denormal numbers to zero, in the whole thread. The next test is to find them again."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture
def new_inputs() -> int:
    """Every time. The number that they follow from is in the report of a test that fails."""
    seed = random.getrandbits(31)
    torch.manual_seed(seed)
    random.seed(seed)
    print(f"seed {seed}")
    return seed


@pytest.fixture
def poisoned_outputs() -> Iterator[None]:
    """What ``torch.empty`` returns is full of NaN: a result that is not written is noticed."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
