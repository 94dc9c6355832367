"""Speculation in theory, beside what runs did (Leviathan et al., 2211.17192).

The theory assumes that every proposal is accepted with the same probability a, independently of all others, that a
pass of the target over gamma + 1 tokens takes as long as a pass over one, and that nothing else but drafting takes any
time. Then a round gives (1 - a^(gamma + 1)) / (1 - a) tokens (equation 1;
``lab.engine.adaptive_window.tokens_per_round``), and
decoding is faster by (1 - a^(gamma + 1)) / ((1 - a)(gamma c + 1)), where c is the time of a pass of the draft over that
of a pass of the target (theorem 3.8).
"""

import heapq
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.config import EngineConfig
from lab.engine.adaptive_window import tokens_per_round
from lab.measure.measuring import Spread, steps
from lab.trace.events import Proposed, StepTimed, Verified
from lab.trace.run import Run

GAMMAS = range(1, 33)
"""Windows to choose from; 32 is the widest that the engine takes."""


def speedup(acceptance: float, gamma: int, cost: float, pass_ratio: float = 1.0) -> float:
    """Theorem 3.8: the speed-up over decoding without speculation. ``cost``: c.

    ``pass_ratio``: time of a pass over gamma + 1 tokens / time of one over a single token; the theorem has 1.
    """
    return tokens_per_round(acceptance, gamma) / (gamma * cost + pass_ratio)


def best_speedup(acceptance: float, cost: float, gammas: Sequence[int] = GAMMAS) -> float:
    """The speed-up at the best of some windows, by theorem 3.8."""
    return max(speedup(acceptance, gamma, cost) for gamma in gammas)


def needed_acceptance(faster: float, cost: float, gammas: Sequence[int] = GAMMAS) -> float:
    """The least acceptance at which the best of some windows gives that speed-up. Infinite: not even 1 does."""
    if best_speedup(1.0, cost, gammas) < faster:
        return math.inf
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = best_speedup(middle, cost, gammas) >= faster
        low, high = (low, middle) if enough else (middle, high)
    return high


def tree_tokens(nodes: int, ranks: Sequence[float]) -> float:
    """Expected tokens of a round whose draft is the best tree of ``nodes`` tokens.

    Positional acceptance (Chen et al., "Sequoia", 2402.12374, section 3.1): below a token that was accepted, the
    drafter's k-th likeliest token is right with the probability ``ranks[k - 1]``, wherever it stands. With ranks that
    do not rise, taking the likeliest tokens first makes the best tree.
    """
    total = 1.0
    nearest = [(-ranks[0], 1.0, 0)]  # of each token that can be added: its probability, its parent's, its rank
    for _ in range(nodes):
        negative, parent, rank = heapq.heappop(nearest)
        total -= negative
        heapq.heappush(nearest, (negative * ranks[0], -negative, 0))
        if rank + 1 < len(ranks):
            heapq.heappush(nearest, (-parent * ranks[rank + 1], parent, rank + 1))
    return total


@dataclass(frozen=True)
class Parts:
    """Milliseconds of a step, each the median of many: drafting, the target's pass, and everything else."""

    draft: float
    target: float
    other: float

    @classmethod
    def of(cls, timed: Sequence[StepTimed]) -> "Parts":
        rows = [(step.draft_ms, step.verify_ms, step.sample_ms + step.rest_ms) for step in timed]
        return cls(*map(statistics.median, zip(*rows, strict=True)))


@dataclass(frozen=True)
class Speculated:
    """Runs of one setting, over their rounds of a full window.

    Attributes:
        acceptance: accepted / verified proposals: the likeliest a if the theory's assumption holds.
        rounds, passes: such rounds, and all passes after the prefill, counting runs of the same prompt and draws once.
            A lookup proposes in few passes: what follows from its rounds does not hold for all of its time.
        verified, accepted: by position, counted in the same way.
        tokens: what such a round gave.
        round: what such a round took.
        plain: what a step took without speculation, which gives one token.
        speedup: tokens per second over those without speculation, repeat by repeat.
    """

    gamma: int
    acceptance: float
    rounds: int
    passes: int
    verified: tuple[int, ...]
    accepted: tuple[int, ...]
    tokens: float
    round: Parts
    plain: Parts
    speedup: Spread

    @property
    def cost(self) -> float:
        """c: time of a proposal / time of a pass of the target over one token."""
        return self.round.draft / self.gamma / self.plain.target

    @property
    def pass_ratio(self) -> float:
        """Time of a pass over gamma + 1 tokens / time of one over a single token. The theory assumes 1."""
        return self.round.target / self.plain.target

    @property
    def expected_tokens(self) -> float:
        return tokens_per_round(self.acceptance, self.gamma)

    @property
    def expected_speedup(self) -> float:
        return speedup(self.acceptance, self.gamma, self.cost)

    @property
    def expected_with_pass(self) -> float:
        """The same, with the time that the wide pass takes here."""
        return speedup(self.acceptance, self.gamma, self.cost, self.pass_ratio)


def without_speculation(name: str, configs: Mapping[str, EngineConfig]) -> str | None:
    """The setting to compare ``name`` with: the one without speculation whose cache is most like its own.

    Both have a cache or neither has. None: there is no such setting.
    """
    own = configs[name]
    plain = {
        other: config
        for other, config in configs.items()
        if config.speculative == "off" and config.kv_cache == own.kv_cache
    }

    def likeness(other: str) -> tuple[bool, bool]:
        return plain[other].kv_dtype == own.kv_dtype, plain[other].paged == own.paged

    return max(plain, key=likeness, default=None)


def speculated(runs: Sequence[Run], plain: Sequence[Run]) -> Speculated | None:
    """``runs`` of one setting beside those without speculation, in the order of their repeats. None: no speculation, a
    window that changes, or no whole round. Times are those of all runs. Verdicts are counted once if repeats share
    prompt and seed: the others say nothing new, and an interval over all of them would be too narrow."""
    if not runs or not plain:
        return None
    config = runs[0].config
    if config.speculative == "off" or config.gamma_varies:
        return None
    gamma = config.num_speculative_tokens
    verified, accepted, rounds, passes = Counter(), Counter(), 0, 0
    timed: list[StepTimed] = []
    counted = set()
    for run in runs:
        whole = whole_rounds(run, gamma)
        new = (known := _decided_by(run)) not in counted
        counted.add(known)
        rounds += new * len(whole)
        passes += new * (len(steps(run, "decode")) + len(steps(run, "verify")))
        rejected = set()  # block verification decides on what follows a rejected draft token, too; the theory does not
        for event in run.events:
            if isinstance(event, Verified) and event.step in whole and new and event.step not in rejected:
                verified[event.position] += 1
                accepted[event.position] += event.accepted
                if not event.accepted:
                    rejected.add(event.step)
            elif isinstance(event, StepTimed) and event.step in whole:
                timed.append(event)
    one = [step for run in plain for step in steps(run, "decode")]
    if not rounds or not one:
        return None
    rates = zip(runs, plain, strict=False)
    return Speculated(
        gamma=gamma,
        acceptance=accepted.total() / verified.total(),
        rounds=rounds,
        passes=passes,
        verified=tuple(verified[i] for i in range(gamma)),
        accepted=tuple(accepted[i] for i in range(gamma)),
        tokens=1 + accepted.total() / rounds,
        round=Parts.of(timed),
        plain=Parts.of(one),
        speedup=Spread.of([a.metrics.tokens_per_second / b.metrics.tokens_per_second for a, b in rates]),
    )


def whole_rounds(run: Run, gamma: int) -> set[int]:
    """The steps with a full window."""
    proposals = Counter(event.step for event in run.events if isinstance(event, Proposed))
    return {step for step, count in proposals.items() if count == gamma}


def _decided_by(run: Run) -> tuple[tuple[int, ...], int | None]:
    """The prompt, and the seed unless nothing is drawn: runs that share them have the same verdicts."""
    return tuple(run.prompt_token_ids), None if run.sampling.greedy else run.sampling.seed
