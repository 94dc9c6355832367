"""How many tokens to propose: a fixed number, or the one that promises the most tokens a second.

With acceptance probability a, a round of g proposals gives (1 - a^(g + 1)) / (1 - a)
tokens on average (Leviathan et al., 2211.17192, equation 1) and takes the time of g proposals, of
one pass over g + 1 tokens a sequence, and of what surrounds them. The adaptive window is the g with
the best quotient: what Leviathan's section 3.5 does with constants, Liu et al. (2406.14066) do with
measured times ("goodput"), and so it is done here. Acceptance is that of recent rounds, times are
those of recent steps.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FORGET = 0.9
"""What a round leaves of the weight of those before it in the estimate of acceptance."""
PROBE_EVERY = 32
"""Rounds after which a window of 0 is tried at 1: what is never proposed is never accepted."""
AGEING = 0.5
"""What is left then of the weight of all rounds before: they are long ago, and a few good probes shall count."""
PRIOR = (3.0, 4.0)
"""Accepted and judged proposals that a request seems to have had before its first: one bad round is no verdict."""
RELUCTANCE = 1.05
"""A new window must promise so much more than the present one: measurements are noisy."""
KEPT = 21
"""Measurements of a size: the median of the last so many counts."""
SIZES = 16
"""Sizes that a line is drawn through: those met last."""
REFIT_EVERY = 16
"""Measurements; the first so many are each taken into account at once."""


def tokens_per_round(acceptance: float, gamma: int) -> float:
    """Expected tokens of a round: 1 + a + a^2 + ... + a^gamma."""
    return sum(acceptance**i for i in range(gamma + 1))


class Line:
    """Milliseconds by size: a constant and so much for each one more, from the last measurements of every size.

    It is the line of Theil and Sen (Sen 1968) through the sizes' medians: its slope is the median of the slopes of all
    pairs of sizes, so that steps which something else slowed down do not bend it. A pair counts by the measurements
    of the size that has fewer. A size that is seldom met is not forgotten for one that is met in every step. Until a
    second size is known, there is taken to be no constant; so a smaller window is tried.
    """

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}  # by size, the one met last at the end
        self._seen = 0
        self._fit: tuple[float, float] | None = (0.0, 0.0)

    @property
    def known(self) -> bool:
        """Whether anything is measured."""
        return self._seen > 0

    @property
    def compared(self) -> bool:
        """Whether there is a second size, without which a constant is not told from a slope."""
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
        """0 before anything is measured."""
        if self._fit is None:
            self._fit = _line([(size, statistics.median(times), len(times)) for size, times in self._times.items()])
        constant, slope = self._fit
        return constant + slope * size


class Costs:
    """Measured times of a pool's steps without their drafting, in milliseconds; that is each drafter's own.

    All are near enough to lines over the few tokens of a round: a pass of the target by the tokens in it, and so what
    surrounds it (the verdict, the events), drafting by the proposals. Prompts are not: a token more costs them less.
    """

    def __init__(self) -> None:
        self._passes, self._around = Line(), Line()

    def observe(self, tokens: int, pass_ms: float, around_ms: float) -> None:
        """A pass over ``tokens`` took ``pass_ms``, and what surrounded it ``around_ms``."""
        self._passes.observe(tokens, pass_ms)
        self._around.observe(tokens, around_ms)

    @property
    def compared(self) -> bool:
        """Whether passes of two sizes have been timed: until then any other size's time is taken to be as it suits a
        try, and nothing to tell anybody."""
        return self._passes.compared

    @property
    def known(self) -> bool:
        """Whether there has been a step: in a pool that a request comes to in the middle of its output, not yet."""
        return self._passes.known

    def pass_ms(self, tokens: int) -> float:
        """A pass of the target over ``tokens``."""
        return self._passes.ms(tokens)

    def round_ms(self, gamma: int, sequences: int, known: int, drafting: Line) -> float:
        """A whole round of ``gamma`` proposals for each of ``sequences``; ``drafting`` by that number takes so long.
        ``known``: tokens that its pass computes beside proposals."""
        tokens = known + sequences * gamma
        return (drafting.ms(gamma) if gamma else 0.0) + self.pass_ms(tokens) + self._around.ms(tokens)


def _line(points: Sequence[tuple[int, float, int]]) -> tuple[float, float]:
    """Constant and slope, neither of them negative, through points (size, ms, how often it was measured)."""
    slope = _weighted_median([(ms / size, count) for size, ms, count in points])  # then the constant is not negative
    pairs = itertools.combinations(points, 2)
    slopes = [((ms_b - ms_a) / (b - a), min(count_a, count_b)) for (a, ms_a, count_a), (b, ms_b, count_b) in pairs]
    if slopes:
        slope = min(slope, max(0.0, _weighted_median(slopes)))
    return max(0.0, _weighted_median([(ms - slope * size, count) for size, ms, count in points])), slope


def _weighted_median(values: list[tuple[float, int]]) -> float:
    """Of pairs (value, weight)."""
    values.sort()
    sums = list(itertools.accumulate(weight for _, weight in values))
    return values[bisect.bisect_left(sums, sums[-1] / 2)][0]


def promises(acceptance: float, most: int, round_ms: Callable[[int], float]) -> list[float]:
    """Expected tokens a millisecond with 0 .. ``most`` proposals a round; ``round_ms(g)``: a round's time."""
    found, tokens, likely = [], 0.0, 1.0
    for gamma in range(most + 1):
        tokens += likely  # which makes it tokens_per_round(acceptance, gamma)
        likely *= acceptance
        found.append(tokens / round_ms(gamma))
    return found


def best_window(acceptance: float, most: int, round_ms: Callable[[int], float]) -> int:
    """The g in 0 .. ``most`` that promises most."""
    found = promises(acceptance, most, round_ms)
    return found.index(max(found))


@dataclass(slots=True)
class Window:
    """The window of one request.

    Attributes:
        most: never more than this; the window itself unless it is adaptive.
        gamma: tokens to propose in the next round.
    """

    most: int
    adaptive: bool
    gamma: int = 0
    _rounds: int = 0
    _accepted: float = PRIOR[0]
    _judged: float = PRIOR[1]

    def __post_init__(self) -> None:
        self.gamma = self.most

    @property
    def acceptance(self) -> float:
        """Accepted of judged proposals in recent rounds; three quarters before there are any."""
        return self._accepted / self._judged

    def observe(self, accepted: int, judged: int, sequences: int, known: int, costs: Costs, drafting: Line) -> bool:
        """After a round: of ``judged`` proposals ``accepted`` were kept, in a batch of ``sequences``, whose next pass
        computes ``known`` tokens beside proposals: the newest of each, or without a cache their whole texts.
        ``drafting``: the times of the request's own drafter, by proposals. Where it had no idea, nothing is learnt of
        it.

        Returns:
            Whether gamma has changed. What it changes to is best if the whole batch did the same.
        """
        if not self.adaptive or (self.gamma and not judged):
            return False
        before = self.gamma
        self._rounds += 1
        if judged:
            self._accepted = FORGET * self._accepted + accepted
            self._judged = FORGET * self._judged + judged
        if not costs.known or (self.gamma and not drafting.known):  # the times of this round are still to come
            return False

        found = promises(self.acceptance, self.most, lambda gamma: costs.round_ms(gamma, sequences, known, drafting))
        best = max(found)
        if best > RELUCTANCE * found[before]:
            self.gamma = found.index(best)
        elif before == 0 and self._rounds % PROBE_EVERY == 0:
            self.gamma = 1
            self._accepted, self._judged = AGEING * self._accepted, AGEING * self._judged
        return self.gamma != before
