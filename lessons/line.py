"""A straight line through points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Line:
    """y = intercept + slope x, by least squares; ``error`` is the slope's standard error.

    The error takes the scatter about the line to be independent from point to point.
    """

    intercept: float
    slope: float
    error: float


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line:
    """The line nearest to the points.

    Raises:
        ValueError: fewer than three points, or all at one x.
    """
    if len(x) < 3 or len(set(x)) == 1:
        raise ValueError("a line and its error take three points, not all at one place.")
    (slope, intercept), covariance = np.polyfit(x, y, 1, cov=True)
    return Line(float(intercept), float(slope), float(np.sqrt(covariance[0, 0])))
