"""How rows of a measurement take turns, so that a busy machine slows all of them alike."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

Row = TypeVar("Row")


def shuffled(rows: Iterable[Row], times: int) -> Iterator[list[Row]]:
    """All rows, ``times`` times over, each time in another order. The orders are the same in every process."""
    order, shuffle = list(rows), random.Random(0).shuffle
    for _ in range(times):
        shuffle(order)
        yield list(order)
