"""Progress of loading models, and how to cancel it.

Loading is watched within one context (``contextvars``), which belongs to a thread:
``with track_loading(loading): load_engine(...)``.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import nn
from tqdm import tqdm
from transformers.utils import logging as transformers_logging

from lab.errors import LabError
from lab.models.checkpoint_files import abandon_downloads

MIN_REPORTED_BYTES = 1e5
"""Smallest download that is reported, in bytes: the index, fetched before the files of weights, is smaller."""


class LoadingCancelled(LabError):
    """Loading was cancelled by whoever watched it."""


class Loading:
    """The progress of models that are being loaded.

    Args:
        cancelled: once set, loading ends with ``LoadingCancelled`` at the next weight or piece of a download.
    """

    def __init__(self, cancelled: threading.Event | None = None) -> None:
        self.cancelled = cancelled or threading.Event()
        self._name = ""
        self._fetched: list[_Fetched] = []
        self._sizes: dict[str, int] = {}
        self._bytes = self._total = self._layer = self._layers = 0
        self._began = 0.0

    def begin(self, name: str, model: nn.Module, item_bytes: int) -> None:
        """A model's weights are next. ``model`` may be on "meta"; a weight takes ``item_bytes`` per number."""
        self.check()
        self._sizes = {name: weight.numel() * item_bytes for name, weight in model.named_parameters()}
        self._layers = 1 + max(map(_layer, self._sizes))
        self._name, self._fetched, self._bytes, self._layer = name, [], 0, 0
        self._began = time.monotonic()
        self._total = sum(self._sizes.values())

    def took(self, weight: str) -> None:
        """A weight has been put where it belongs."""
        self.check()
        if not self._bytes:
            self._began = time.monotonic()  # fetching is over
        self._bytes += self._sizes.get(weight, 0)
        self._layer = max(self._layer, 1 + _layer(weight))

    def check(self) -> None:
        if self.cancelled.is_set():
            if self._fetched:  # else any download is another caller's
                abandon_downloads()
            raise LoadingCancelled(
                "Loading was stopped. The models loaded before can still be chosen; those unloaded to make room are "
                "then loaded again."
            )

    def status(self) -> str:
        """The progress in a sentence; empty before there is any."""
        if not self._name:
            return ""
        here, whole, fetching = self._so_far()
        left = _left(here, whole, time.monotonic() - self._began)
        if fetching:
            return f"Fetching {self._name}: {_of(here, whole)}{left}."
        if here >= whole:
            return f"Loaded {self._name}; getting ready …"
        return f"Loading {self._name}: {_of(here, whole)}, layer {self._layer} of {self._layers}{left}."

    @property
    def share(self) -> float | None:
        """The share that is fetched or, after that, loaded: 0 to 1. None: nothing of it has begun."""
        here, whole, _ = self._so_far()
        return min(1.0, here / whole) if self._name and whole else None

    def _so_far(self) -> tuple[float, float, bool]:
        """The bytes that are there, all bytes, and whether they are still being fetched."""
        fetched = self._fetched  # another thread may begin the next model meanwhile
        whole = max((bar.total or 0 for bar in fetched if not bar.received), default=0)
        if not self._bytes and whole >= MIN_REPORTED_BYTES:
            return min(max(bar.n for bar in fetched), whole), whole, True
        return self._bytes, self._total, False

    def bar(self) -> type[tqdm]:
        """A progress bar class for downloads: it shows nothing and reports to this object."""
        loading = self

        class Bar(_Fetched):
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options | {"disable": True})
                self.received = "ownloading bytes" in (options.get("desc") or "")
                if options.get("unit") == "B":
                    loading._fetched.append(self)

            def update(self, n: float | None = 1) -> None:
                self.n += n or 0
                try:
                    loading.check()
                except LoadingCancelled:
                    # Xet's threads are not Python's: one would print the error, and go on.
                    if not isinstance(threading.current_thread(), threading._DummyThread):
                        raise

        return Bar


class _Fetched(tqdm):
    """A download's progress: ``n`` of ``total`` bytes.

    Attributes:
        received: whether it counts bytes as they arrive, whose number is not known in advance. Xet has another
            bar beside it, which counts bytes as they are written. They arrive compressed, and some time before.
    """

    received: bool


_watching: ContextVar[Loading | None] = ContextVar("loading", default=None)


@contextmanager
def track_loading(loading: Loading) -> Iterator[None]:
    """Report what is loaded in this context to ``loading``."""
    token = _watching.set(loading)
    try:
        yield
    finally:
        _watching.reset(token)


def current_loading() -> Loading | None:
    """The ``Loading`` that this context reports to, if any."""
    return _watching.get()


def _report_weights(weights: Iterable[tuple[str, Any]], loading: Loading) -> Iterator[tuple[str, Any]]:
    for name, weight in weights:
        yield name, weight
        loading.took(name)


def _instead_of_a_bar(bar: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """transformers' hook for its progress bars: the one over weights, as transformers places them, reports to whoever
    watches; others are kept."""
    loading = current_loading()
    if loading is None or options.get("desc") != "Loading weights":
        return bar(*args, **options)
    return _report_weights(*args, loading)


transformers_logging.set_tqdm_hook(_instead_of_a_bar)


def _layer(weight: str) -> int:
    found = re.search(r"\.(\d+)\.", weight)
    return int(found[1]) if found else -1


def _left(part: float, whole: float, seconds: float) -> str:
    """The time that the rest takes at the speed so far; empty before there is a speed."""
    if not part or seconds < 2:
        return ""
    left = (whole / part - 1) * seconds
    return f", about {left / 60:.0f} min left" if left >= 90 else f", about {left:.0f} s left"


def _of(part: float, whole: float) -> str:
    scale, unit = (1e9, "GB") if whole >= 1e9 else (1e6, "MB")
    return f"{part / scale:.1f} of {whole / scale:.1f} {unit}"
