"""Numbers at the edges between digits and between units."""

from __future__ import annotations

import pytest

from visualize.format_numbers import digits, in_bytes, three


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.0123"), (2, "2"), (9.996, "10"), (99.96, "100"), (999.9, "1,000"), (123_456, "123,456")],
)
def test_three_digits_are_shown_without_a_power_of_ten(value: float, text: str) -> None:
    assert digits(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.534, "0.53"), (2, "2.00"), (9.994, "9.99"), (9.996, "10.0"), (99.94, "99.9"), (99.96, "100"), (1234, "1,234")],
)
def test_trailing_zeros_are_kept_in_columns(value: float, text: str) -> None:
    assert three(value) == text


@pytest.mark.parametrize(("size", "text"), [(43_210, "43.2 kB"), (999.96e6, "1,000 MB"), (2.5e12, "2,500 GB")])
def test_bytes_have_three_digits_and_a_unit(size: float, text: str) -> None:
    assert in_bytes(size) == text
