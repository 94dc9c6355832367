"""Models that visitors look up on a hub: few at a time, and none again right after it could not be found."""

import threading
import time

from lab.errors import LabError
from lab.memory.model_memory import ModelInfo, find_model, refuse_other_than_hub_id
from lab.models.loader import ModelLoadError

AT_ONCE = 8
"""Most look-ups at a time; one takes seconds if no hub answers."""
REMEMBERED = 60.0
"""Seconds for which a failed look-up is not repeated."""

_lock = threading.Lock()
_asking = 0
_failed: dict[str, tuple[float, str]] = {}


def look_up(hub: str) -> ModelInfo:
    """The model of a hub id, looked up anonymously. It may take seconds.

    Raises:
        LabError: see ``find_model``; the id failed a moment ago; or too many look-ups are in progress.
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
        return find_model(hub, open_to_all=True)
    except LabError as error:
        with _lock:
            _failed[hub] = time.monotonic(), str(error)
        raise
    finally:
        with _lock:
            _asking -= 1
