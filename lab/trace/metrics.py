"""Metrics of a run, from its events alone; of a run in progress, from its events so far."""

import itertools
from bisect import insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from lab.trace.events import Committed, Event, Prefilled, Proposed, RecurrentRolledBack, RunStarted, StepTimed, Verified
from lab.trace.roofline import Achieved, Bound, Limits, achieved, limits_of


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of a run; None where there is nothing to count yet.

    Attributes:
        generated_tokens: tokens of the output.
        cached_prompt_tokens: tokens of the prompt found in the cache, not computed.
        elapsed_ms: from the run's beginning to its last event.
        ttft_ms: time to first token: from the beginning to the first commit.
        tokens_per_second: tokens after the first, over the time after the first.
        itl_p50_ms, itl_p99_ms: inter-token latency (``inter_token_ms``).
        mean_acceptance_length: 1 + accepted / rounds that had proposals: tokens per round. Those after a stop count
            too, though they are not in the output.
        draft_acceptance_rate: accepted proposals / proposals.
        acceptance_by_position: accepted at a position / rounds that had proposals.
        mean_total_variation: of a lossy rule's tokens from the target's distribution (``Verified.total_variation``),
            over the verified positions.
        target_passes_per_token: target passes / tokens, both after the prefill. Of the passes that read a text again
            after a preemption, only the one that gives a token counts.
        kv_reserved_bytes, kv_used_bytes: most bytes of cache reserved during a step, proposals included, and holding
            tokens in use after one.
        state_bytes: of the recurrent layers' state, beside it.
        rollback_ms: time to bring a recurrent state back before rejected tokens, the mean; and the last ``rollback``.
        peak_memory_bytes: highest ``memory_bytes`` of a step.
        roofline_fraction: least time / time of the target's passes (``achieved``), median over the steps after the
            prefill. Above 1 the device's limits were measured too low.
        roofline_nearer: the limit that is nearer in most of these steps.
    """

    generated_tokens: int
    cached_prompt_tokens: int
    elapsed_ms: float
    ttft_ms: float | None
    tokens_per_second: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_by_position: tuple[float, ...]
    mean_total_variation: float | None
    target_passes_per_token: float | None
    kv_reserved_bytes: int
    kv_used_bytes: int
    state_bytes: int
    rollback_ms: float | None
    rollback: RecurrentRolledBack | None
    peak_memory_bytes: int
    roofline_fraction: float | None
    roofline_nearer: Bound | None

    @property
    def roofline_bound(self) -> Bound | None:
        """The limit that binds a pass. None: not known, or nothing can be said to (``lab.trace.roofline.BINDS``)."""
        known = self.roofline_fraction is not None and self.roofline_nearer
        return Achieved(self.roofline_fraction, self.roofline_nearer).bound if known else None


class Meter:
    """Computes a run's metrics as its events come, without going back to earlier ones."""

    def __init__(self) -> None:
        self._generated = self._later = self._counted = self._cached = self._passes = 0
        self._elapsed = 0.0
        self._first: Committed | None = None
        self._last: Committed | None = None
        self._gaps: list[float] = []  # sorted
        self._rounds = self._proposed = 0
        self._round: int | None = None
        self._accepted: list[int] = []  # by position
        self._variation, self._lossy = 0.0, 0  # sum and number of positions
        self._rollback: RecurrentRolledBack | None = None
        self._rollbacks, self._rollback_ms = 0, 0.0
        self._reserved = self._used = self._state = self._memory = 0
        self._limits: Limits | None = None
        self._shares: list[float] = []  # of the roofline, sorted
        self._bounds: Counter[Bound] = Counter()

    def take(self, event: Event) -> None:
        self._elapsed = event.t_ms
        match event:
            case RunStarted():
                self._limits, self._state = limits_of(event), event.state_bytes
            case Prefilled():
                self._cached = event.cached_tokens
            case Proposed():
                self._proposed += 1
                self._rounds += event.step != self._round
                self._round = event.step
                self._accepted += [0] * (event.position + 1 - len(self._accepted))
            case Verified():
                self._accepted[event.position] += event.accepted
                if event.total_variation is not None:
                    self._variation += event.total_variation
                    self._lossy += 1
            case Committed():
                self._generated += len(event.token_ids)
                if self._last is None:
                    self._first = event
                else:
                    self._later += len(event.token_ids)
                    for gap in inter_token_ms((self._last, event)):
                        insort(self._gaps, gap)
                self._last = event
            case RecurrentRolledBack():
                self._rollback = event
                self._rollbacks += 1
                self._rollback_ms += event.ms
            case StepTimed():
                prefill = event.step_kind == "prefill"
                self._passes += self._later > self._counted  # a prefill, too, if it gave a token after a preemption
                self._counted = self._later
                if self._limits and not prefill and (found := achieved(event, self._limits)):
                    insort(self._shares, found.share)
                    self._bounds[found.nearer] += 1
                self._reserved = max(self._reserved, event.kv_reserved_bytes)
                self._used = max(self._used, event.kv_used_bytes)
                self._memory = max(self._memory, event.memory_bytes)

    def metrics(self) -> Metrics:
        accepted, rounds = sum(self._accepted), self._rounds
        decode_ms = self._last.t_ms - self._first.t_ms if self._last else 0.0
        return Metrics(
            generated_tokens=self._generated,
            cached_prompt_tokens=self._cached,
            elapsed_ms=self._elapsed,
            ttft_ms=self._first.t_ms if self._first else None,
            tokens_per_second=1000 * self._later / decode_ms if decode_ms > 0 else None,
            itl_p50_ms=_percentile(self._gaps, 0.5),
            itl_p99_ms=_percentile(self._gaps, 0.99),
            mean_acceptance_length=1 + accepted / rounds if rounds else None,
            draft_acceptance_rate=accepted / self._proposed if self._proposed else None,
            acceptance_by_position=tuple(count / rounds for count in self._accepted),
            mean_total_variation=self._variation / self._lossy if self._lossy else None,
            target_passes_per_token=self._passes / self._later if self._later else None,
            kv_reserved_bytes=self._reserved,
            kv_used_bytes=self._used,
            state_bytes=self._state,
            rollback_ms=self._rollback_ms / self._rollbacks if self._rollbacks else None,
            rollback=self._rollback,
            peak_memory_bytes=self._memory,
            roofline_fraction=_percentile(self._shares, 0.5),
            roofline_nearer=self._bounds.most_common(1)[0][0] if self._bounds else None,
        )


def measure(events: Iterable[Event]) -> Metrics:
    meter = Meter()
    for event in events:
        meter.take(event)
    return meter.metrics()


def inter_token_ms(events: Iterable[Event]) -> list[float]:
    """Inter-token latency of every token after the first commit, in milliseconds. The tokens of one commit arrive
    together; each counts as the time since the previous commit, divided by their number."""
    gaps: list[float] = []
    for before, commit in itertools.pairwise(event for event in events if isinstance(event, Committed)):
        tokens = len(commit.token_ids)
        gaps += [(commit.t_ms - before.t_ms) / tokens] * tokens
    return gaps


def _percentile(ordered: list[float], share: float) -> float | None:
    """The value at ``share`` of the way, interpolated between the two nearest."""
    if not ordered:
        return None
    whole, part = divmod((len(ordered) - 1) * share, 1)
    low, high = ordered[int(whole)], ordered[min(int(whole) + 1, len(ordered) - 1)]
    return low + part * (high - low)
