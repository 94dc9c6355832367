"""A run as text for the page's script: one JSON object per line.

The first line is ``{"run": its id}``. With ``"live": true`` the others arrive through the channel of
that id (``visualize.jobs.sse_channel``); ``"against"`` is the address of another page with the run's
settings (``visualize.compare_link``, ``visualize.pool_inputs.in_lab``). Then come frames
(``visualize.reduce.frames``), and ``{"status": ...}``, ``{"problem": ...}`` or, of a run that was stopped before
it began,
``{"stopped": ...}``, a sentence each. In a channel, a file that was saved before its run's end ends with
``{"cut": true}``. The same script reads a run in progress, one from a file and one in an exported page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from lab.trace.json_codec import dump_json
from lab.trace.run import Run, RunFileError
from visualize.reduce.frames import Frame, Reducer


class Reduces(Protocol):
    """The part of a reducer that a transcript needs."""

    def feed(self, events: Iterable[Any]) -> list[Frame]: ...


def line(record: dict[str, Any]) -> str:
    """One line of JSON with no tags in it: it is safe in a script element, and Gradio does not take it for markup."""
    return dump_json(record, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c") + "\n"


def lines(reducer: Reduces, events: Iterable[Any]) -> list[str]:
    """The frames that these events complete, one per line."""
    return [line(frame) for frame in reducer.feed(events)]


def head(id: str, *, live: bool = False, against: str = "") -> str:
    """The first line."""
    return line({"run": id} | ({"live": True} if live else {}) | ({"against": against} if against else {}))


def recorded(run: Run, id: str, *, elsewhere: bool = True) -> str:
    """The whole transcript of a run that is over. ``elsewhere``: it comes from a file, and perhaps another machine.

    Raises:
        RunFileError: its events are valid one by one, but contradict each other.
    """
    return reduced(Reducer(recorded=elsewhere), run.events, id)


def reduced(reducer: Reduces, events: Iterable[Any], id: str) -> str:
    """The transcript that a reducer makes of all ``events``. Raises RunFileError as ``recorded`` does."""
    try:
        return head(id) + "".join(lines(reducer, events))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RunFileError(
            f"This file's events contradict each other ({type(error).__name__}: {str(error)[:80]}), so they are not "
            "what an engine recorded."
        ) from error
