"""Numbers at the edges between digits and between units."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from visualize.format_numbers import digits, in_bytes, three


@pytest.mark.parametrize(
    ("write", "values", "texts"),
    [
        (digits, (0, 0.01234, 2, 9.996, 99.96, 999.9, 123_456), "0 0.0123 2 10 100 1,000 123,456"),
        (three, (0.534, 2, 9.994, 9.996, 99.94, 99.96, 1234), "0.53 2.00 9.99 10.0 99.9 100 1,234"),
        (in_bytes, (43_210, 999.96e6, 2.5e12), "43.2 kB 1,000 MB 2,500 GB"),
    ],
)
def test_three_digits_are_shown_without_a_power_of_ten(
    write: Callable[[float], str], values: tuple[float, ...], texts: str
) -> None:
    assert " ".join(map(write, values)) == texts
