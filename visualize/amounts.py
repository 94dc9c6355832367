"""Amounts in words: how many of a thing, and bytes in the unit that suits them."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """``counted(2, "block")`` is "2 blocks"."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def byte_unit(size: float) -> tuple[float, str]:
    """Bytes in a unit, and its name: that in which ``size`` has one digit or more before the point, at least kB."""
    return (1e9, "GB") if size >= 1e9 else (1e6, "MB") if size >= 1e6 else (1e3, "kB")
