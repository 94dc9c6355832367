"""Ctrl-C while the engine works: it waits for the end of the step, of which nothing is then half done."""

from __future__ import annotations

import _signal  # as Python's own ``signal``, which takes 9 microseconds a step to turn numbers into enums and back
import threading
from types import FrameType


class Interrupts:
    """A context that ends with KeyboardInterrupt if Ctrl-C was pressed after ``hold``. A second Ctrl-C does not wait,
    nor does one before ``hold``.

    It changes nothing in other threads than the main one, which alone hears of Ctrl-C, and nothing where the program
    does something else on Ctrl-C than raise KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self._holds = self._came = self._hears = False

    def __enter__(self) -> Interrupts:
        if (
            threading.current_thread() is threading.main_thread()
            and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
        ):
            self._hears = True
            _signal.signal(_signal.SIGINT, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if self._hears:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        if self._came:
            raise KeyboardInterrupt

    def hold(self) -> None:
        """From here on Ctrl-C waits."""
        self._holds = True

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._holds and not self._came:
            self._came = True
            return
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)  # what is raised here may skip __exit__
        _signal.default_int_handler(number, frame)
