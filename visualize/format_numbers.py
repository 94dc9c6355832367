"""Amounts in words: numbers to three digits, and bytes in a suitable unit."""


def byte_unit(size: float) -> tuple[float, str]:
    """The bytes in a unit, and its name: the largest of GB, MB and kB in which ``size`` is at least 1, else kB."""
    return (1e9, "GB") if size >= 1e9 else (1e6, "MB") if size >= 1e6 else (1e3, "kB")


def in_bytes(size: float) -> str:
    """``in_bytes(43_210)`` is "43.2 kB"."""
    scale, unit = byte_unit(size)
    return f"{digits(size / scale)} {unit}"


def digits(value: float) -> str:
    """At most three significant digits below 100, a whole number above: "2", "12.3", "1,234"."""
    return f"{value:.3g}" if abs(value) < 99.95 else f"{value:,.0f}"


def three(value: float) -> str:
    """As ``digits``, but with trailing zeros and at most two decimal places: "2.00", "12.0", "1,234"."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"
