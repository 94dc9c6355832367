"""The progress of long work, shown on a terminal."""

from __future__ import annotations

import shutil
import time
from typing import TextIO


class Terminal:
    """One line for each of ``parts``. Progress within a part is shown below it, if ``stream`` can overwrite a line."""

    def __init__(self, stream: TextIO, parts: int) -> None:
        self._stream, self._parts = stream, parts
        self._part, self._began = 0, time.monotonic()

    def part(self, words: str) -> None:
        """Begin the next part."""
        self.clear()
        self._part += 1
        seconds = time.monotonic() - self._began
        print(f"[{self._part}/{self._parts}] {words} (after {seconds:.0f} s)", file=self._stream, flush=True)

    def note(self, words: str) -> None:
        """Print a line that stays."""
        self.clear()
        print(f"  {words}", file=self._stream, flush=True)

    def step(self, words: str) -> None:
        """Show what is being done."""
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K  {words}"[: width + 4])
            self._stream.flush()

    def clear(self) -> None:
        """Erase the current step."""
        if self._stream.isatty():
            self._stream.write("\r\x1b[K")
            self._stream.flush()
