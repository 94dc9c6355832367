"""The number of tokens to draft: fixed, or the one that promises the most tokens per second.

With acceptance rate a, a round of g proposals gives (1 - a^(g + 1)) / (1 - a) tokens on average (Leviathan et al.,
2211.17192, equation 1). It takes the time of g proposals, of one pass over g + 1 tokens per sequence, and of the work
around them. The adaptive window is the g with the best ratio of the two: Leviathan's section 3.5 computes it from
constants, Liu et al. (2406.14066, "goodput") and this module from measured times of recent rounds and steps.
"""

import bisect
import itertools
import operator
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FORGET = 0.9
"""Factor by which each round reduces the weight of earlier ones in the estimated acceptance rate."""
PROBE_EVERY = 32
"""Rounds after which a window of 0 is tried at 1: what is never proposed can never be accepted."""
AGEING = 0.5
"""Factor by which such a try reduces the weight of all earlier rounds: a few good probes should outweigh the past."""
PRIOR = (3.0, 4.0)
"""Accepted and verified draft tokens that a request begins with, so that one bad round decides nothing."""
RELUCTANCE = 1.05
"""Factor by which a new window must promise more than the current one: measurements are noisy."""
KEPT = 21
"""Measurements kept per size, of which the median counts."""
SIZES = 16
"""Sizes that a line is fitted to: those met last."""
REFIT_EVERY = 16
"""Measurements between two fits; up to this many, each one causes a fit."""


def tokens_per_round(acceptance: float, gamma: int) -> float:
    """Expected tokens of a round: 1 + a + a^2 + ... + a^gamma."""
    return sum(acceptance**i for i in range(gamma + 1))


class TheilSen:
    """Milliseconds as a linear function of size, fitted to the last measurements of every size.

    It is the Theil-Sen line (Sen 1968) through the sizes' medians: its slope is the median of the slopes of all pairs
    of sizes, so that steps slowed down by something else do not bend it. A pair is weighted by the measurements of the
    size that has fewer. Until a second size is known, the constant is taken to be 0, so that a smaller window is tried.
    """

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}  # by size, the one met last at the end
        self._seen = 0
        self._fit: tuple[float, float] | None = (0.0, 0.0)

    @property
    def known(self) -> bool:
        return self._seen > 0

    @property
    def compared(self) -> bool:
        return len(self._times) > 1

    def observe(self, size: int, ms: float) -> None:
        self._times[size] = times = self._times.pop(size, deque(maxlen=KEPT))
        times.append(ms)
        if len(self._times) > SIZES:
            del self._times[next(iter(self._times))]
        self._seen += 1
        if self._seen <= REFIT_EVERY or self._seen % REFIT_EVERY == 0:
            self._fit = None

    def ms(self, size: int) -> float:
        """The estimate for ``size``; 0 before anything is measured."""
        if self._fit is None:
            self._fit = _line([(size, statistics.median(times), len(times)) for size, times in self._times.items()])
        constant, slope = self._fit
        return constant + slope * size


class StepCosts:
    """Measured times of a core's steps in milliseconds, without drafting, which each drafter times itself.

    Over the few tokens of a round all are near enough to lines: the target's pass and the work ``around`` it (verdicts,
    events) by the tokens in the pass, drafting by the proposals. Prompts are not: there another token costs less.
    """

    def __init__(self) -> None:
        self.passes, self.around = TheilSen(), TheilSen()

    def observe(self, tokens: int, pass_ms: float, around_ms: float) -> None:
        self.passes.observe(tokens, pass_ms)
        self.around.observe(tokens, around_ms)

    def round_ms(self, gamma: int, sequences: int, known: int, drafting: TheilSen) -> float:
        """The estimate for a round of ``gamma`` proposals for each of ``sequences``. ``known``: tokens that its pass
        computes besides proposals; ``drafting``: times by number of proposals."""
        tokens = known + sequences * gamma
        return (drafting.ms(gamma) if gamma else 0.0) + self.passes.ms(tokens) + self.around.ms(tokens)


def _line(points: Sequence[tuple[int, float, int]]) -> tuple[float, float]:
    """Constant and slope, neither of them negative, through points (size, ms, how often it was measured)."""
    slope = _weighted_median([(ms / size, count) for size, ms, count in points])  # no more, or the constant is negative
    pairs = itertools.combinations(points, 2)
    slopes = [((ms_b - ms_a) / (b - a), min(count_a, count_b)) for (a, ms_a, count_a), (b, ms_b, count_b) in pairs]
    if slopes:
        slope = min(slope, max(0.0, _weighted_median(slopes)))
    return max(0.0, _weighted_median([(ms - slope * size, count) for size, ms, count in points])), slope


def _weighted_median(values: list[tuple[float, int]]) -> float:
    values.sort()
    sums = list(itertools.accumulate(weight for _, weight in values))
    return values[bisect.bisect_left(sums, sums[-1] / 2)][0]


def promises(acceptance: float, most: int, round_ms: Callable[[int], float]) -> list[float]:
    """Expected tokens per millisecond with 0 .. ``most`` proposals a round, which takes ``round_ms(g)``."""
    powers = itertools.accumulate(itertools.repeat(acceptance, most), operator.mul, initial=1.0)
    return [tokens / round_ms(gamma) for gamma, tokens in enumerate(itertools.accumulate(powers))]


def best_window(acceptance: float, most: int, round_ms: Callable[[int], float]) -> int:
    found = promises(acceptance, most, round_ms)
    return found.index(max(found))


@dataclass(slots=True)
class AdaptiveWindow:
    """The window of one request.

    Attributes:
        most: upper limit of gamma, and gamma itself unless the window is adaptive.
        by_batch: least and most of several batch sizes and their gamma, row by row (``lab.config.gamma_table``).
        gamma: tokens to propose in the next round, whatever else is running.
    """

    most: int
    adaptive: bool
    by_batch: Sequence[tuple[int, int, int]] = ()
    gamma: int = 0
    _rounds: int = 0
    _accepted: float = PRIOR[0]
    _verified: float = PRIOR[1]

    def __post_init__(self) -> None:
        self.gamma = self.most

    @property
    def acceptance(self) -> float:
        """Share of verified draft tokens that were accepted in recent rounds; three quarters before there are any."""
        return self._accepted / self._verified

    def for_batch(self, running: int) -> int:
        """Tokens to propose in a step of so many sequences: ``gamma``, or fewer if ``by_batch`` says so, whose last row
        is also for larger batches."""
        if not self.by_batch:
            return self.gamma
        found = next((gamma for _, most, gamma in self.by_batch if running <= most), self.by_batch[-1][-1])
        return min(self.gamma, found)

    def observe(
        self, accepted: int, verified: int, sequences: int, known: int, costs: StepCosts, drafting: TheilSen
    ) -> bool:
        """Take in a round, in which ``accepted`` of ``verified`` draft tokens were accepted, and choose the next gamma:
        the best if the whole batch uses it. A round in which nothing was proposed changes nothing.

        The next pass, for ``sequences``, computes ``known`` tokens besides proposals: the newest of each, or without
        a cache their whole texts. ``drafting``: the times of the request's own drafter by number of proposals.

        Returns:
            Whether gamma has changed.
        """
        if not self.adaptive or (self.gamma and not verified):
            return False
        before = self.gamma
        self._rounds += 1
        if verified:
            self._accepted = FORGET * self._accepted + accepted
            self._verified = FORGET * self._verified + verified
        if not costs.passes.known or (self.gamma and not drafting.known):  # the times of this round are still to come
            return False

        found = promises(self.acceptance, self.most, lambda gamma: costs.round_ms(gamma, sequences, known, drafting))
        best = max(found)
        if best > RELUCTANCE * found[before]:
            self.gamma = found.index(best)
        elif before == 0 and self._rounds % PROBE_EVERY == 0:
            self.gamma = 1
            self._accepted, self._verified = AGEING * self._accepted, AGEING * self._verified
        return self.gamma != before
