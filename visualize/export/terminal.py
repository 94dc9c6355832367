"""The progress of long work, shown on a terminal."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

from lab.util.stdio import discard


class Terminal:
    """One line for each of ``parts``. Progress within a part is shown below it, if ``stream`` can overwrite a line.

    What is made does not depend on who reads of it: nothing here raises if the stream is closed (``| head``) or full.
    """

    def __init__(self, stream: TextIO, parts: int) -> None:
        self._stream, self._parts = stream, parts
        self._part, self._began = 0, time.monotonic()

    def part(self, words: str) -> None:
        """Begin the next part."""
        self.clear()
        self._part += 1
        seconds = time.monotonic() - self._began
        self._write(f"[{self._part}/{self._parts}] {words} (after {seconds:.0f} s)\n")

    def note(self, words: str) -> None:
        """Print a line that stays."""
        self.clear()
        self._write(f"  {words}\n")

    def step(self, words: str) -> None:
        """Show what is being done."""
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[K  {words}"[: width + 4])

    def clear(self) -> None:
        """Erase the current step."""
        if self._stream.isatty():
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            print(text, end="", file=self._stream, flush=True)
        except OSError:
            discard(self._stream)
