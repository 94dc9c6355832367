"""Runs what may take long and cannot be interrupted in a thread of its own, so that callers can stop waiting for it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.1
"""Seconds between two looks at it."""


def in_background(do: Callable[[], T], name: str) -> Future[T]:
    """Run ``do`` in a thread of this ``name``, which does not keep the process from ending. Returns what it will return
    or raise."""
    future: Future[T] = Future()

    def run(future: Future[T]) -> None:
        try:
            future.set_result(do())
        except BaseException as error:  # of any kind, or a caller would wait for ever
            future.set_exception(error)
        finally:
            del future  # or the future, the error and what its frames hold would keep each other alive

    threading.Thread(target=run, args=(future,), name=name, daemon=True).start()
    return future
