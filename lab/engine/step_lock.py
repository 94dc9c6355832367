"""Who drives an engine: of all threads that wait for an event, one at a time computes, for everybody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lab.engine.interrupt import Interrupts


class Driving:
    """Lets one thread at a time drive.

    Args:
        take_out: takes out the sequences that were cancelled. Called only by the thread that drives.
        forget: called when something was broken off in the middle, so that what was under way cannot go on.
    """

    def __init__(self, take_out: Callable[[], None], forget: Callable[[], None]) -> None:
        self._take_out, self._forget = take_out, forget
        self._turn = threading.Condition()
        self._driven = False  # whether some thread drives
        self._abandoned = False  # whether a sequence was abandoned meanwhile

    @contextmanager
    def turn(self, needless: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Wait until no other thread drives, and drive. False: it has become ``needless`` meanwhile."""
        with Interrupts() as interrupts:
            with self._turn:
                self._turn.wait_for(lambda: needless() or not self._driven)
                drives = not needless()
                if drives:
                    interrupts.hold()
                    self._driven = True
            if not drives:
                yield False
                return
            try:
                yield True
            except Exception:
                raise
            except BaseException:  # a second Ctrl-C, most likely
                self._forget()
                raise
            finally:
                try:
                    while not self._let_go():
                        self._take_out()
                except BaseException:
                    self._let_go(anyway=True)  # else nobody could ever drive again
                    raise

    def take_out_abandoned(self) -> None:
        """Take out a sequence that was just cancelled: here, or if another thread drives, there before it lets go."""

        def left_to_another() -> bool:
            self._abandoned |= self._driven  # in case it makes no further step
            return self._driven

        with self.turn(left_to_another) as drives:
            if drives:
                self._take_out()

    def _let_go(self, *, anyway: bool = False) -> bool:
        """Stop driving. False if an abandoned sequence is still to be taken out, unless ``anyway``."""
        with self._turn:
            if self._abandoned and not anyway:
                self._abandoned = False
                return False
            self._driven = False
            self._turn.notify_all()
            return True
