"""A lock for the thread that steps an engine. Of all threads that wait for an event, one at a time computes for all.

Ctrl-C waits for the end of the step, so no step is left half done.
"""

import _signal  # as Python's own ``signal``, which takes 9 microseconds a step to turn numbers into enums and back
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class StepLock:
    """Lets one thread at a time step.

    Args:
        reap_cancelled: ends the sequences that were cancelled. Called only by the thread that holds the lock.
        abort_all: called after a step was broken off, when no request in progress can go on.
    """

    def __init__(self, reap_cancelled: Callable[[], None], abort_all: Callable[[], None]) -> None:
        self._reap_cancelled, self._abort_all = reap_cancelled, abort_all
        self._turn = threading.Condition()
        self._held = False
        self._abandoned = False  # True if a sequence was abandoned meanwhile

    @contextmanager
    def hold(self, done: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Hold the lock once no other thread does. False: ``done`` became true while waiting."""
        with DeferredSigint() as interrupts:
            with self._turn:
                self._turn.wait_for(lambda: done() or not self._held)
                holds = not done()
                if holds:
                    interrupts.defer()
                    self._held = True
            if not holds:
                yield False
                return
            try:
                yield True
            except Exception:
                raise
            except BaseException:  # a second Ctrl-C, most likely
                self._abort_all()
                raise
            finally:
                try:
                    while not self._let_go():
                        self._reap_cancelled()
                except BaseException:
                    self._let_go(anyway=True)  # else no thread could ever hold it again
                    raise

    def reap_abandoned(self) -> None:
        """End a sequence that was just cancelled: here, or where the lock is held, before it is released."""

        def left_to_another() -> bool:
            self._abandoned |= self._held  # in case it makes no further step
            return self._held

        with self.hold(left_to_another) as holds:
            if holds:
                self._reap_cancelled()

    def _let_go(self, *, anyway: bool = False) -> bool:
        """Release the lock. False if an abandoned sequence is still to be ended, unless ``anyway``."""
        with self._turn:
            if self._abandoned and not anyway:
                self._abandoned = False
                return False
            self._held = False
            self._turn.notify_all()
            return True


class DeferredSigint:
    """A context that ends with KeyboardInterrupt if Ctrl-C was pressed after ``defer``. A second Ctrl-C does not wait,
    nor does one before ``defer``.

    It changes nothing in other threads than the main one, which alone gets signals, and nothing where the program
    does something else on Ctrl-C than raise KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self._defers = self._came = self._listens = False

    def __enter__(self) -> "DeferredSigint":
        if (
            threading.current_thread() is threading.main_thread()
            and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
        ):
            self._listens = True
            _signal.signal(_signal.SIGINT, self._on_sigint)
        return self

    def __exit__(self, *_: object) -> None:
        if self._listens:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        if self._came:
            raise KeyboardInterrupt

    def defer(self) -> None:
        self._defers = True

    def _on_sigint(self, number: int, frame: FrameType | None) -> None:
        if self._defers and not self._came:
            self._came = True
            return
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)  # what is raised here may skip __exit__
        _signal.default_int_handler(number, frame)
