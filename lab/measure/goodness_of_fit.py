"""Goodness of fit of draws to a distribution."""

from __future__ import annotations

import torch


def g_test(counts: torch.Tensor, expected: torch.Tensor, *, least: float = 0.0) -> float:
    """p-value of the likelihood-ratio test (Wilks, 1938) that draws come from a distribution.

    Args:
        counts: [n], draws of each outcome.
        expected: [n], their probabilities.
        least: outcomes expected less often than this are pooled into one: the statistic follows chi-square only if
            each outcome is expected a few times.

    Returns:
        0 if an outcome of probability 0 was drawn.
    """
    counts, expected = counts.double(), expected.double()
    draws = counts.sum()
    if counts[expected == 0].any():
        return 0.0
    rare = expected * draws < least
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    counts, expected = counts[expected > 0], expected[expected > 0]
    if len(expected) < 2:
        return 1.0
    seen = counts > 0
    statistic = 2 * (counts[seen] * torch.log(counts[seen] / (expected[seen] * draws))).sum()
    freedom = torch.tensor(len(expected) - 1, dtype=torch.float64)
    return torch.special.gammaincc(freedom / 2, (statistic / 2).clamp_min(0)).item()
