"""Coroutines in tests that know no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def complete(coroutine: Coroutine[None, None, Result]) -> Result:
    """What it returns. It runs in a thread of its own: a browser's test keeps a loop running in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
