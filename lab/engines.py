"""Engines by the name of their model pair, loaded when they are first asked for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab import load_engine
from lab.decode.engine import Engine
from lab.pair.loading import EMBEDDED_DRAFTS


@dataclass(frozen=True)
class Pair:
    """A target and perhaps a draft, as ``load_engine`` takes them, and what people call them."""

    label: str
    target: str | None = None
    draft: str | None = None


EMBEDDED = {name: Pair(name.capitalize(), draft=name) for name in EMBEDDED_DRAFTS}
"""The pairs that are part of the repository."""


def only(target: str | None, draft: str | None) -> dict[str, Pair]:
    """The pair that whoever starts a server names.

    It goes by the name of the first embedded one, which means a target with a draft that was made for it.
    """
    names = [Path(name).name for name in (target, draft) if name]
    return {next(iter(EMBEDDED)): Pair(" + ".join(names), target, draft)}


class Engines:
    """One engine for each pair, shared by everyone.

    Args:
        offered: pairs by name.
        device, dtype: see ``load_engine``.
    """

    def __init__(self, offered: Mapping[str, Pair] = EMBEDDED, *, device: str | None = None, dtype: str = "auto"):
        self.offered = dict(offered)
        self._place = {"device": device, "dtype": dtype}
        self._loaded: dict[str, Engine] = {}
        self._loading = threading.Lock()

    @property
    def labels(self) -> dict[str, str]:
        """What people call the pairs."""
        return {name: pair.label for name, pair in self.offered.items()}

    def __call__(self, name: str) -> Engine:
        """Raises what ``load_engine`` raises."""
        with self._loading:
            if name not in self._loaded:
                pair = self.offered[name]
                self._loaded[name] = load_engine(pair.target, pair.draft, **self._place)
            return self._loaded[name]
