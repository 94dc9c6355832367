"""Parts of messages: counts, lists, rates, errors in one line."""

from collections.abc import Sequence


def error_summary(error: BaseException) -> str:
    """A library's error in one line: its type and the first line of its message, or two if that ends in a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    message = message if len(message) <= 200 else f"{message[:199]}…"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def listed(words: Sequence[str]) -> str:
    """One or more words, with commas and an "and" before the last."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def counted(number: int, thing: str) -> str:
    """``counted(2, "block")`` is "2 blocks", and ``counted(2, "pass")`` is "2 passes"."""
    several = "es" if thing.endswith("s") else "s"
    return f"{number:,} {thing}{several * (number != 1)}"


def format_rate(rate: float) -> str:
    """Tokens per second, as a whole number or to three digits: "1376", "12.3", "0.42"."""
    return f"{rate:.0f}" if rate >= 99.95 else f"{rate:.3g}"
