"""Amounts in words: how many of a thing, numbers in three digits, and bytes in the unit that suits them."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """``counted(2, "block")`` is "2 blocks"."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def byte_unit(size: float) -> tuple[float, str]:
    """Bytes in a unit, and its name: that in which ``size`` has one digit or more before the point, at least kB."""
    return (1e9, "GB") if size >= 1e9 else (1e6, "MB") if size >= 1e6 else (1e3, "kB")


def in_bytes(size: float) -> str:
    """``in_bytes(43_210)`` is "43.2 kB"."""
    scale, unit = byte_unit(size)
    return f"{digits(size / scale)} {unit}"


def digits(value: float) -> str:
    """Three digits without a power of ten, and all that stand before the point: "2", "12.3", "1,234"."""
    return f"{value:.3g}" if abs(value) < 99.95 else f"{value:,.0f}"


def three(value: float) -> str:
    """The same with its zeros, two places at most: "2.00", "12.0", "1,234"."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"
