"""Where there is no GPU, Triton's kernels run in its interpreter, a choice that Triton makes when it is first imported.

Torch gets one thread, here and in the processes that tests start: the test models are so small that two are slower than
one, and on a busy machine two wait for each other, at ten times the cost. Hypothesis has no deadline for its examples
or for generating them: how long that takes depends on how busy the machine is.
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


ONE_APP = {
    "tests/api/": "the API's",
    "tests/browser/workshop/": "a workshop's",
    "tests/browser/test_server_page.py": "a workshop's",
}
"""Files whose tests share a running app, which each process would start for itself."""


def unit(nodeid: str) -> str:
    """What is given to one process as a whole: a file, or all of those that share an app."""
    file = nodeid.partition("::")[0]
    return next((app for files, app in ONE_APP.items() if file.startswith(files)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    return Units(config, log)


@pytest.hookimpl(trylast=True)  # when those of pages are marked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In several processes, files of pages are begun in turn with others, evenly: they wait for different things. Of
    each kind the longest come first, so that no process is left with a long one when the others have ended."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    units: dict[bool, dict[str, list[pytest.Item]]] = {True: {}, False: {}}
    for item in items:
        units[item.get_closest_marker("browser") is not None].setdefault(unit(item.nodeid), []).append(item)
    turns = [
        (n / len(kind), some) for kind in units.values() for n, some in enumerate(sorted(kind.values(), key=_length))
    ]
    items[:] = [item for _, some in sorted(turns, key=lambda turn: turn[0]) for item in some]


def _length(items: list[pytest.Item]) -> int:
    """About how long they take, negated."""
    return -sum(20 if item.get_closest_marker("slow") else 1 for item in items)


def pytest_collection_finish() -> None:
    """Garbage collection only starts here, and skips everything imported so far: scanning it would take a third of a
    second each time."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # otherwise what is left at the end is reported as leaked


@pytest.fixture(autouse=True)
def _denormals() -> Iterator[None]:
    """Training flushes denormal numbers to zero in the whole thread; undo that for the next test."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture
def new_inputs() -> int:
    """Random inputs that differ from run to run. A failing test's report contains the seed."""
    seed = random.getrandbits(31)
    torch.manual_seed(seed)
    random.seed(seed)
    print(f"seed {seed}")
    return seed


@pytest.fixture
def poisoned_outputs() -> Iterator[None]:
    """Fills what ``torch.empty`` returns with NaN, so that a result that is not written is noticed."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
