"""Wording that messages share."""

from __future__ import annotations

import pytest

from lab.util.messages import counted, error_summary, format_rate


@pytest.mark.parametrize(
    ("said", "short"),
    [
        ("", "ValueError"),
        ("no such file\nsecond", "ValueError: no such file"),
        ("Validation error for 'a':\n\n  expected int\nmore", "ValueError: Validation error for 'a': expected int"),
        ("one of:", "ValueError: one of:"),
        ("x" * 300, f"ValueError: {'x' * 199}…"),
    ],
)
def test_an_error_of_a_library_is_shortened_to_a_line_with_its_reason(said: str, short: str) -> None:
    assert error_summary(ValueError(said)) == short


@pytest.mark.parametrize(
    ("rate", "said"), [(1376.4, "1376"), (99.96, "100"), (12.34, "12.3"), (1.5, "1.5"), (0.42, "0.42")]
)
def test_a_speed_has_three_digits_however_slow(rate: float, said: str) -> None:
    assert format_rate(rate) == said


@pytest.mark.parametrize(
    ("number", "thing", "said"),
    [
        (0, "block", "0 blocks"),
        (1, "block", "1 block"),
        (1234, "token", "1,234 tokens"),
        (10**12, "token", "1,000,000,000,000 tokens"),
        (1, "pass", "1 pass"),
        (3, "guess", "3 guesses"),
    ],
)
def test_one_thing_is_singular(number: int, thing: str, said: str) -> None:
    assert counted(number, thing) == said
