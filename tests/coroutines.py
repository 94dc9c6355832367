"""Coroutines in tests that have no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def complete(coroutine: Coroutine[None, None, Result]) -> Result:
    """Run it and return its result. It gets a thread of its own, as browser tests keep a loop running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
