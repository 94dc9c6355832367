"""Reducers that work in a process of their own.

Python runs one thread at a time: reducing a run's events in a thread beside the engine would make the engine wait.
Another process does not. It serves all visitors' runs, imports neither torch nor Gradio (30 MB, a fifth of a second),
and ends with the process that started it.
"""

import itertools
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from visualize.reduce.frames import Fold, lines

log = logging.getLogger(__name__)

GONE = (OSError, EOFError, pickle.UnpicklingError)
"""Raised when asking a process that is gone, or that never started."""


class ReducerError(RuntimeError):
    """A reducer failed on what it was fed."""


class ReducerProcess:
    """One instance of the other process. Raises OSError if it cannot start."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._popen = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the server: this process still reports how runs end
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # on Windows, which has no sessions
        )

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def ask(self, number: int, request: str, value: Any = None) -> Any:
        """The answer of ``serve``. Raises ReducerError, or one of ``GONE``."""
        with self._lock:
            requests = self._popen.stdin
            if requests.closed:
                raise BrokenPipeError("the other process is gone")
            try:
                requests.write(pickle.dumps((number, request, value), pickle.HIGHEST_PROTOCOL))
                requests.flush()
            except OSError:
                with suppress(OSError):
                    requests.close()  # else Python tries, and complains, when it collects what could not be written
                raise
            answer = pickle.load(self._popen.stdout)
        if isinstance(answer, ReducerError):
            raise answer
        return answer


class ReducerClient:
    """A reducer that runs in the other process; if that is gone, it runs here, fed again from the start."""

    _process: ReducerProcess | None = None
    _starting = threading.Lock()
    _numbers = itertools.count()

    def __init__(self, reducer: Fold) -> None:
        self._reducer = reducer  # as it is before it is fed
        self._number = next(self._numbers)
        self._fed: list[Any] = []
        self._sent = 0  # lines
        try:
            self._at: ReducerProcess | None = self.start()
            self._at.ask(self._number, "take", reducer)
        except GONE:
            self._lose()

    @classmethod
    def start(cls) -> ReducerProcess:
        """The running process; a new one if there is none. Raises OSError if it cannot start."""
        with cls._starting:
            if cls._process is None or not cls._process.alive:
                cls._process = ReducerProcess()
            return cls._process

    def feed(self, events: Sequence[Any]) -> list[str]:
        """The lines (``visualize.reduce.frames``) that these events complete. Raises ReducerError, or what the reducer
        raises."""
        self._fed += events
        if self._at:
            try:
                new = self._at.ask(self._number, "feed", events)
            except GONE:
                self._lose()
                new = lines(self._reducer, self._fed)[self._sent :]
        else:
            new = lines(self._reducer, events)
        self._sent += len(new)
        return new

    def after(self) -> Any:
        """The basis of comparison for the next run. Nothing may be fed after this."""
        if self._at:
            try:
                return self._at.ask(self._number, "after")
            except GONE:
                self._lose()
                lines(self._reducer, self._fed)
        return self._reducer.after()

    def _lose(self) -> None:
        log.warning("a run is reduced in the engine's own process, and slows it down", exc_info=True)
        self._at = None


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until their end: "take" a reducer under a number, "feed" it, or return its ``after`` and forget
    it. Its errors are answered as ReducerError."""
    reducers: dict[int, Fold] = {}
    while True:
        try:
            number, request, value = pickle.load(requests)
        except EOFError:
            return
        answer: Any = None
        try:
            match request:
                case "take":
                    reducers[number] = value
                case "feed":
                    answer = lines(reducers[number], value)
                case "after":
                    answer = reducers.pop(number).after()
        except Exception as error:
            log.exception("a run could not be reduced")
            reducers.pop(number, None)  # nothing more will be asked of it
            answer = ReducerError(f"{type(error).__name__}: {error}")
        pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    from visualize.jobs import reducer_process  # the module whose classes are pickled, not __main__

    reducer_process.serve(sys.stdin.buffer, sys.stdout.buffer)
