"""What may take long and cannot be interrupted, in a thread of its own: whoever waits for it can say so, and stop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
LOOK = 0.1
"""Seconds from one look at it to the next."""


def aside(do: Callable[[], T], name: str) -> Future[T]:
    """What ``do`` will return, or raise. Its thread has this ``name``, and does not keep the process from ending."""
    future: Future[T] = Future()

    def run(future: Future[T]) -> None:
        try:
            future.set_result(do())
        except BaseException as error:  # of any kind: whoever still waits would wait for ever
            future.set_exception(error)
        finally:
            del future  # else it, the error and what all of its frames hold would keep each other

    threading.Thread(target=run, args=(future,), name=name, daemon=True).start()
    return future
