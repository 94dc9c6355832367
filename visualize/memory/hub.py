"""Models that visitors ask a hub for: few at a time, and none again at once that could not be had."""

from __future__ import annotations

import threading
import time

from lab.config import LabError
from lab.memory.models import Model, find, refuse_other_than_hub_id
from lab.pair.loading import ModelLoadError

AT_ONCE = 8
"""How many are asked for at a time; one takes seconds where no hub answers."""
REMEMBERED = 60.0
"""Seconds for which nobody asks again for what could not be had."""

_lock = threading.Lock()
_asking = 0
_failed: dict[str, tuple[float, str]] = {}


def look_up(hub: str) -> Model:
    """The model of a hub id, asked for in nobody's name. It may take seconds.

    Raises:
        LabError: see ``find``, or the hub is being asked for too many.
    """
    global _asking
    refuse_other_than_hub_id(hub)
    if "/" not in hub:
        raise ModelLoadError(f"{hub!r} is not a hub id: it must be owner/name, like Qwen/Qwen3-8B.")
    with _lock:
        now = time.monotonic()
        for old in [id for id, (since, _) in _failed.items() if now - since > REMEMBERED]:
            del _failed[old]
        if hub in _failed:
            raise ModelLoadError(f"{_failed[hub][1]} It was asked for less than a minute ago.")
        if _asking >= AT_ONCE:
            raise ModelLoadError(
                f"The hub is already being asked for {_asking} models, the most at once. Try again soon."
            )
        _asking += 1
    try:
        return find(hub, open_to_all=True)
    except LabError as error:
        with _lock:
            _failed[hub] = time.monotonic(), str(error)
        raise
    finally:
        with _lock:
            _asking -= 1
