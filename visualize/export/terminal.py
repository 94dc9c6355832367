"""How far a long piece of work is, told on a terminal."""

from __future__ import annotations

import shutil
import time
from typing import TextIO


class Terminal:
    """A line for each of so many parts. What goes on in a part is told below it, where a line can be written over."""

    def __init__(self, stream: TextIO, parts: int) -> None:
        self._stream, self._parts = stream, parts
        self._part, self._began = 0, time.monotonic()

    def part(self, words: str) -> None:
        """The next part has begun."""
        self.clear()
        self._part += 1
        seconds = time.monotonic() - self._began
        print(f"[{self._part}/{self._parts}] {words} (after {seconds:.0f} s)", file=self._stream, flush=True)

    def note(self, words: str) -> None:
        """Something that is to stay."""
        self.clear()
        print(f"  {words}", file=self._stream, flush=True)

    def step(self, words: str) -> None:
        """What is being done."""
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K  {words}"[: width + 4])
            self._stream.flush()

    def clear(self) -> None:
        """Leave no half-said step behind."""
        if self._stream.isatty():
            self._stream.write("\r\x1b[K")
            self._stream.flush()
