"""Where there is no GPU, Triton's kernels run in its interpreter, a choice that Triton makes when it is first imported.

Torch gets one thread, here and in the processes that tests start: the test models are so small that two are slower than
one, and on a busy machine two wait for each other, at ten times the cost. Hypothesis has no deadline for its examples
or for generating them: how long that takes depends on how busy the machine is.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import random
from collections.abc import Iterator
from typing import Any

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
    "tests/test_secrets.py": "the API's",
    "tests/models/test_hub.py": "the API's",
    "tests/browser/workshop/": "a workshop's",
    "tests/browser/test_server_page.py": "a workshop's",
}
"""Files whose tests share a running app, or what apps are forked from: each process would start one for itself."""


def unit(nodeid: str) -> str:
    """What is given to one process as a whole: a file, or all of those that share an app."""
    file = nodeid.partition("::")[0]
    return next((app for files, app in ONE_APP.items() if file.startswith(files)), file)


def starts_an_app(unit: str) -> bool:
    return unit.startswith("tests/browser/") or unit in ONE_APP.values()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            """The first process begins with files without an app, the others with those of pages and the API: they
            wait for different things, and to start an app and a browser takes 15 s of CPU time in each process."""
            plain = node.gateway.id == "gw0"
            if wanted := [one for one in self.workqueue if starts_an_app(one) != plain]:
                self.workqueue.move_to_end(wanted[0], last=False)
            super()._assign_work_unit(node)

    return Units(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In several processes, the longest units come first: no process is left with one when the others have ended."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    units: dict[str, list[pytest.Item]] = {}
    for item in items:
        units.setdefault(unit(item.nodeid), []).append(item)
    items[:] = [item for some in sorted(units.values(), key=_length) for item in some]


def _length(items: list[pytest.Item]) -> int:
    """About how long they take, negated."""
    return -sum(20 if item.get_closest_marker("slow") else 1 for item in items)


def pytest_collection_finish() -> None:
    """Garbage collection only starts here, and skips everything imported so far: scanning it would take a third of a
    second each time."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # otherwise what is left at the end is reported as leaked


@pytest.fixture(scope="session", autouse=True)
def _rough_limits() -> None:
    """Only where tests run: the process that hands them out imports no models."""
    importlib.import_module("tests.rough_limits")


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
