"""How rows of a measurement take turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def shuffled(rows: Iterable[T], times: int) -> Iterator[list[T]]:
    """All rows, ``times`` times over: in a random order, then in its reverse, then in a new one. Over an even number of
    times, each row thus comes before another as often as after it; over an odd number, once more or once less.
    The orders are the same in every process."""
    order, shuffle = list(rows), random.Random(0).shuffle
    for turn in range(times):
        if turn % 2:
            order.reverse()
        else:
            shuffle(order)
        yield list(order)
