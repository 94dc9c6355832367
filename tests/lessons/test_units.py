"""How lessons write numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lessons.units import UNITS, WRITE, significant


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1, "1.00"),
        (5.4321, "5.43"),
        (54.321, "54.3"),
        (543.21, "543"),
        (9.999, "10.0"),
        (999.9, "1,000"),
        (0.05, "0.05"),
        (0.012345, "0.0123"),
        (-2.5, "−2.50"),
        (1234567, "1,230,000"),
        (math.nan, "–"),
    ],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("times", 5.4, "5.40×"),
        ("percent", 0.642, "64.2%"),
        ("ms", 0.48, "0.48 ms"),
        ("ms", 999.4, "999 ms"),
        ("ms", 999.7, "1.00 s"),
        ("ms", 2500, "2.50 s"),
        ("bytes", 327680, "320 KiB"),
        ("bytes", 10 * 2**30, "10.0 GiB"),
        ("bytes", 12, "12.0 B"),
        ("tokens", 1, "1 token"),
        ("tokens", 1024, "1,024 tokens"),
        ("count", 15.9, "16"),
        ("digits", 0.45661, "0.45661"),
        ("digits", 0.0000024, "0.0000024"),
        ("digits", 1.0, "1"),
        ("digits", 12300.0, "12,300"),
    ],
)
def test_numbers_are_written_with_their_unit(unit: str, value: float, text: str) -> None:
    assert WRITE[unit](value) == text


@given(st.floats(-1e300, 1e300), st.sampled_from(UNITS))
def test_any_number_can_be_written(value: float, unit: str) -> None:
    assert WRITE[unit](value)
