"""Parts of messages: counts, rates, errors in one line."""

from __future__ import annotations

import pytest

from lab.util.messages import counted, error_summary, format_rate


@pytest.mark.parametrize(
    ("message", "short"),
    [
        ("", "ValueError"),
        ("no such file\nsecond", "ValueError: no such file"),
        ("Validation error for 'a':\n\n  expected int\nmore", "ValueError: Validation error for 'a': expected int"),
        ("one of:", "ValueError: one of:"),
        ("x" * 300, f"ValueError: {'x' * 199}…"),
    ],
)
def test_an_error_of_a_library_is_shortened_to_a_line_with_its_reason(message: str, short: str) -> None:
    assert error_summary(ValueError(message)) == short


def test_rates_have_three_digits_and_one_thing_is_singular() -> None:
    assert [format_rate(rate) for rate in (1376.4, 99.96, 12.34, 1.5, 0.42)] == ["1376", "100", "12.3", "1.5", "0.42"]
    assert [counted(number, "block") for number in (0, 1, 1234)] == ["0 blocks", "1 block", "1,234 blocks"]
    assert [counted(number, "pass") for number in (1, 3)] == ["1 pass", "3 passes"]
