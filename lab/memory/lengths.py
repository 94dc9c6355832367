"""How long sequences get, and how many blocks that takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lab.errors import ConfigError

LONGEST = 10_000_000


@dataclass(frozen=True)
class Lengths:
    """Truncated geometric lengths: a sequence ends after every token with the same probability, or else at ``longest``.

    Most are short and a few several times as long: one in e^4 is longer than four times the mean, as with the
    log-normal lengths of ``lab.measure.workload``. Two numbers define them, and everything here follows in closed
    form from P(length > n) = r^n for n < longest; nothing is sampled.

    Args:
        mean: of the truncated lengths, in tokens, from 1 to ``longest``.
        longest: tokens.

    Raises:
        ConfigError: a mean that such lengths cannot have.
    """

    mean: float
    longest: int

    def __post_init__(self) -> None:
        if not isinstance(self.longest, int) or not 1 <= self.longest <= LONGEST:
            raise ConfigError(f"The longest sequence must be a whole number of tokens from 1 to {LONGEST:,}.")
        if not 1 <= self.mean <= self.longest:
            raise ConfigError(
                f"The mean length must be between 1 token and the longest, {self.longest:,}, not {self.mean:,.10g}."
            )

    @property
    def log_survival(self) -> float:
        """ln r, where r is the probability that a sequence goes on after a token, such that the mean is as given."""
        if self.mean == self.longest:
            return 0.0
        # The mean falls as the probability of ending, 1 - r, rises. Bisection on its logarithm.
        low, high = math.log(1e-18), 0.0
        for _ in range(100):
            middle = (low + high) / 2
            shorter = _geometric_sum(_log_survival(middle), self.longest) < self.mean
            low, high = (low, middle) if shorter else (middle, high)
        return _log_survival(low)

    def mean_blocks(self, block_size: int) -> float:
        """Blocks that a sequence fills on average, the last one perhaps in part.

        The sum over k of P(length > k block_size): every sequence that gets that far takes the block.
        """
        return _geometric_sum(self.log_survival * block_size, self.most_blocks(block_size))

    def most_blocks(self, block_size: int) -> int:
        """Blocks of the longest sequence."""
        return -(-self.longest // block_size)


def _log_survival(log_ending: float) -> float:
    """ln(1 - e^x)."""
    ending = math.exp(log_ending)
    return math.log1p(-ending) if ending < 1 else -math.inf


def _geometric_sum(log_ratio: float, terms: int) -> float:
    """1 + q + ... + q^(terms - 1) for q = e^log_ratio, accurate for q close to 1 too."""
    if log_ratio == -math.inf:
        return 1.0
    if log_ratio > -1e-17:
        return float(terms)
    return math.expm1(log_ratio * terms) / math.expm1(log_ratio)
