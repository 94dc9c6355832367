"""Engines by model pair: which pairs there are to choose from, which fit, and which are loaded."""

import gc
import itertools
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from lab.engine.engine import Engine
from lab.errors import ConfigError
from lab.kv_cache.kv_cache import slot_sizes
from lab.kv_cache.storage import bytes_per_token
from lab.load import load_engine
from lab.memory.model_memory import ModelInfo, find_model, known_models
from lab.models.checkpoint_files import has_weights
from lab.models.devices import resolve_device
from lab.models.load_progress import current_loading
from lab.models.loader import EMBEDDED_DRAFTS, refuse_absent, resolve_dtype
from lab.models.meta_model import weight_bytes
from lab.trace.events import Event
from lab.trace.recorder import EventListener
from lab.util.background import POLL_SECONDS, in_background
from lab.util.device_memory import CAPTURING, free_bytes

T = TypeVar("T")

LISTED = {
    "smollm2-1.7b": "smollm2-135m",
    "llama-3.2-3b": "llama-3.2-1b",
    "qwen3-4b": "qwen3-0.6b",
    "qwen3-8b": "qwen3-0.6b",
    "llama-3.1-8b": "llama-3.2-1b",
    "llama-3.1-70b": "llama-3.2-1b",
}
"""Targets and drafts of one family, which share a tokenizer; for sizes and hub ids see ``lab.memory.model_memory``."""
PUBLISHED_BYTES = 2
"""Bytes per parameter of the files on a hub: all of these are published in bfloat16."""
CACHE_TOKENS = 2048
"""Tokens whose keys and values must fit besides the weights, or there would be nothing to see."""
USABLE_SHARE = 0.9
"""Usable share of a device's memory; the rest is for activations, the device's own context and fragmentation."""


@dataclass(frozen=True)
class Pair:
    """A target and perhaps a draft, as ``load_engine`` takes them, and a label for people.

    Attributes:
        disk_bytes: of the weights of a pair that is on a hub; 0: not known.
        memory_bytes: what it takes to decode.
    """

    label: str
    target: str | Path | None = None
    draft: str | Path | None = None
    disk_bytes: int = 0
    memory_bytes: int = 0

    @property
    def has_draft(self) -> bool:
        return self.draft is not None

    @property
    def is_here(self) -> bool:
        """True if nothing of a pair from a hub needs to be fetched."""
        return all(has_weights(hub) for hub in (self.target, self.draft) if isinstance(hub, str))


EMBEDDED = {name: Pair(name.capitalize(), draft=name) for name in EMBEDDED_DRAFTS}
"""The pairs that are part of the repository."""


def named_pair(target: str | None, draft: str | None) -> Pair:
    """The pair that a user names, each model by a folder or a hub id; a draft alone is for the embedded target."""
    target, draft = _unquoted(target), _unquoted(draft)
    names = [Path(os.path.abspath(name)).name for name in (target, draft) if name]  # of "..", too
    if not names:
        raise ConfigError("Name a target model: a folder with config.json and safetensors, or a hub id (owner/name).")
    return Pair(" + ".join(names), _where(target), _where(draft))


def _unquoted(name: str | None) -> str:
    """``name`` without the quotes that some systems put around a copied path."""
    name = (name or "").strip()
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'" else name


def _where(name: str) -> str | Path | None:
    """A folder, a hub id, or None without a name. "~/" means what it means to a shell."""
    place = os.path.expanduser(name) if name.startswith("~/") else name
    return Path(place) if place and os.path.isdir(place) else place or None


def fitting_pairs(*, device: str, dtype: str = "auto") -> dict[str, Pair]:
    """The pairs of ``LISTED`` that fit in a GPU's whole memory, or in the main memory that is free, by their target's
    name."""
    place, models, found = torch.device(device), known_models(), {}
    on_gpu = place.type == "cuda"
    memory = torch.cuda.get_device_properties(device).total_memory if on_gpu else free_bytes(place)
    for name, draft_name in LISTED.items():
        target, draft = models[name], models[draft_name]
        needed = needed_bytes((target, draft), resolve_dtype(dtype, device), in_c=place.type == "cpu")
        if needed <= memory:
            label = f"{target.name} with {draft.name}, {needed / 1e9:.0f} GB"
            disk = PUBLISHED_BYTES * (target.parameters + draft.parameters)
            found[name] = Pair(label, target.hub, draft.hub, disk, needed)
    return found


def needed_bytes(models: Iterable[ModelInfo], dtype: torch.dtype, *, in_c: bool = False) -> int:
    """Device memory that these models need to decode: weights, a short cache, and what else it takes. ``in_c``: with
    the step in C, which copies weights."""
    total = 0
    for model in models:
        shape = model.shape
        total += weight_bytes(model.parameters, dtype, model.packed if in_c else 0)
        layers = shape.kv_layers.total()
        total += CACHE_TOKENS * bytes_per_token("auto", layers=layers, **slot_sizes(shape), dtype=dtype)
    return int(total / USABLE_SHARE)


def _unless_stopped(future: Future[T]) -> T:
    """The result of ``future``, which a caller that is stopped no longer waits for. Raises LoadingCancelled, and what
    ``future`` raises."""
    loading = current_loading()
    try:
        while not wait([future], POLL_SECONDS).done:
            if loading:
                loading.check()
        return future.result()
    finally:
        del future  # see ``in_background``


class EngineMonitor(Protocol):
    """A listener to all events of engines, by their names."""

    def watch(self, model: str) -> EventListener: ...

    def add(self, model: str, engine: Engine) -> None: ...


def _all_of(watches: Sequence[EventListener]) -> EventListener | None:
    if len(watches) < 2:
        return next(iter(watches), None)

    def watch(owner: int, seconds: float, event: Event) -> None:
        for each in watches:
            each(owner, seconds, event)

    return watch


class Engines:
    """One engine for each pair, loaded on first use and shared by all.

    The embedded ones stay. Of the others, which are large, one stays until the next one is loaded or, if both do not
    fit, until just before. ``any_pair``: pairs that are not ``offered`` may be named. ``monitors`` listen to all
    events.
    """

    _seq_ids = itertools.count()  # of all requests in this process: monitors may be shared, too

    def __init__(
        self,
        offered: Mapping[str, Pair] = EMBEDDED,
        *,
        any_pair: bool = False,
        device: str | None = None,
        dtype: str = "auto",
        monitors: Sequence[EngineMonitor] = (),
    ) -> None:
        self.offered = dict(offered)
        self.any_pair = any_pair
        self._device, self._dtype = resolve_device(device), dtype
        self._monitors = monitors
        self._loaded: dict[Pair, Engine] = {}
        self._called = {pair: pair.label for pair in EMBEDDED.values()}
        self._loading = threading.Lock()

    def __call__(self, wanted: str | Pair) -> Engine:
        """The engine of an offered pair, by its name, or of another pair. After an error everything loaded before is
        still there, except a large pair that had to make room.

        Raises:
            ConfigError: a pair that is not available here, or does not fit.
            LoadingCancelled: see ``lab.models.load_progress``.
            LabError: whatever else ``load_engine`` raises.
        """
        pair = self._pair(wanted)
        if engine := self._loaded.get(pair):
            return engine  # at once, whatever others load meanwhile
        self._begin()
        return _unless_stopped(self._load_aside(pair))

    def _begin(self) -> None:
        while not self._loading.acquire(timeout=POLL_SECONDS):
            if loading := current_loading():
                loading.check()

    def _load_aside(self, pair: Pair) -> Future[Engine]:
        here = copy_context()  # it knows who watches the loading
        try:
            return in_background(lambda: here.run(self._load, pair), "decode-lab-loader")
        except BaseException:  # no thread could be started
            self._loading.release()
            raise

    def _load(self, pair: Pair) -> Engine:
        """Load a pair. If cancelled, it ends with the next piece that a hub sends, which may take long; the next pair
        waits for it, since there may not be memory for two."""
        try:
            if pair not in self._loaded:
                if large := pair not in EMBEDDED.values():
                    self._make_room(pair)
                called = self._called.setdefault(pair, self._unused(pair.label))
                on_event = _all_of([monitor.watch(called) for monitor in self._monitors])
                how = {"device": self._device, "dtype": self._dtype, "on_event": on_event, "seq_ids": self._seq_ids}
                engine = load_engine(pair.target, pair.draft, **how)
                for monitor in self._monitors:
                    monitor.add(called, engine)
                if large:
                    self._drop_large()
                self._loaded[pair] = engine
            return self._loaded[pair]
        finally:
            self._loading.release()

    def _pair(self, wanted: str | Pair) -> Pair:
        if isinstance(wanted, Pair):
            if not self.any_pair:
                raise ConfigError(
                    f"{wanted.label} is not available here: a server that others can reach runs only the models "
                    "chosen when it was started. Choose one of those, or start the lab on your own machine."
                )
            return wanted
        if wanted not in self.offered:
            raise ConfigError(f"There is no pair of models {wanted!r} here; there are {', '.join(self.offered)}.")
        return self.offered[wanted]

    def _unused(self, label: str) -> str:
        """A name for monitors that no other pair has: two folders may have the same label."""
        names = itertools.chain([label], (f"{label} ({count})" for count in itertools.count(2)))
        return next(name for name in names if name not in self._called.values())

    def _make_room(self, pair: Pair) -> None:
        """Drop other large pairs if memory is short. Raises ConfigError if there is not enough even then."""
        places = [where for where in (pair.target, pair.draft) if where and where not in EMBEDDED_DRAFTS]
        for where in places:
            refuse_absent(where)
        # A hub may be asked several times before it is given up.
        search = in_background(lambda: [find_model(where) for where in places], "decode-lab-search")
        models = _unless_stopped(search)
        device = torch.device(self._device)
        needed = needed_bytes(models, resolve_dtype(self._dtype, self._device), in_c=device.type == "cpu")
        if needed > free_bytes(device):
            self._drop_large()
        if needed > (free := free_bytes(device)):
            raise ConfigError(
                f"{pair.label} needs about {needed / 1e9:.1f} GB of memory on {self._device}, and {free / 1e9:.1f} GB "
                "are free there. Choose smaller models."
            )

    def _drop_large(self) -> None:
        with CAPTURING:  # graphs of what is dropped are destroyed, at once or as cyclic garbage
            self._loaded = {pair: engine for pair, engine in self._loaded.items() if pair in EMBEDDED.values()}
            gc.collect()
            if self._device.startswith("cuda"):
                torch.cuda.empty_cache()
