"""Output of commands: in UTF-8 wherever it goes, and with nothing lost if it cannot be printed."""

import io
import os
import sys
from collections.abc import Iterable
from typing import TextIO


def print_utf8() -> None:
    """Print UTF-8, wherever it goes: a run's file has to be, and so is all else. On Windows, what does not go to a
    terminal would be in an encoding that lacks most of the characters that models, pages and Gradio print."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


class Output:
    """The standard output. ``failure``: why nothing more is printed."""

    def __init__(self) -> None:
        self.failure: OSError | None = None

    def say(self, line: str) -> None:
        """Print a line. Never raises: if the output is closed (``| head``), what is under way goes on silently."""
        try:
            print(line, flush=True)
        except OSError as error:
            self.failure = error
            discard(sys.stdout)


def print_notes(sentences: Iterable[str]) -> None:
    """Print what is worth knowing about an answer to standard error. Never raises: if that is closed, or a file on a
    full disk, it costs no answer."""
    for sentence in sentences:
        try:
            print(sentence, file=sys.stderr, flush=True)
        except OSError:
            discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Drop what ``stream`` failed to write, which would fail once more when the process ends, and all that follows."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
