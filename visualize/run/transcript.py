"""A run as text for the page's script: one JSON object a line.

The first line is ``{"run": its id}``. With ``"live": true`` the others are told in a channel of
that id (``visualize.server.channel``); ``"against"`` is the address of a comparison of the run's
settings (``visualize.compare.against``). Then come frames (``visualize.run.frames``), and ``{"status": ...}`` or
``{"problem": ...}``, a sentence each. The script that reads it is the same for a run under way, one
from a file, and one in an exported page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from lab.trace.as_json import dumped
from lab.trace.recorder import Run, RunFileError
from visualize.run.frames import Frame, Reducer


class Reduces(Protocol):
    """What is needed of a reducer."""

    def feed(self, events: Iterable[Any]) -> list[Frame]: ...


def line(record: dict[str, Any]) -> str:
    """One line of JSON with no tag in it: it can stand in a script element, and Gradio takes it for no markup."""
    return dumped(record, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c") + "\n"


def lines(reducer: Reduces, events: Iterable[Any]) -> list[str]:
    """The frames that these events complete, a line each."""
    return [line(frame) for frame in reducer.feed(events)]


def head(id: str, *, live: bool = False, against: str = "") -> str:
    """The first line."""
    return line({"run": id} | ({"live": True} if live else {}) | ({"against": against} if against else {}))


def recorded(run: Run, id: str, *, elsewhere: bool = True) -> str:
    """The whole transcript of a run that is over. ``elsewhere``: it comes from a file, and perhaps another machine.

    Raises:
        RunFileError: each of its events is one, but together they are no run.
    """
    return reduced(Reducer(recorded=elsewhere), run.events, id)


def reduced(reducer: Reduces, events: Iterable[Any], id: str) -> str:
    """The transcript that a reducer makes of all there is. Raises RunFileError: see ``recorded``."""
    try:
        return head(id) + "".join(lines(reducer, events))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunFileError(
            f"This file's events contradict each other ({type(error).__name__}: {str(error)[:80]}), so they are not "
            "what an engine recorded. Open a run that this lab saved."
        ) from error
