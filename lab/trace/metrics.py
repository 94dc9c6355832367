"""Numbers of a run, from its events alone. Works on the events so far of a running one."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lab.trace.events import Committed, Event, Judged, Prefilled, Proposed, RunStarted, StepTimed
from lab.trace.roofline import Bound, achieved, limits_of


@dataclass(frozen=True, slots=True)
class Metrics:
    """None where there is nothing to count yet.

    Attributes:
        generated_tokens: tokens of the output.
        cached_prompt_tokens: tokens of the prompt found in the cache, not computed.
        elapsed_ms: from the run's beginning to its last event.
        ttft_ms: time to first token: from the beginning to the first commit.
        tokens_per_second: tokens after the first, over the time after the first.
        itl_p50_ms, itl_p99_ms: inter-token latency (``inter_token_ms``).
        mean_acceptance_length: 1 + accepted / rounds that had proposals: tokens a round gives.
        draft_acceptance_rate: accepted proposals / proposals.
        acceptance_by_position: accepted at a position / rounds that had proposals.
        target_passes_per_token: target forwards / tokens, both after the prefill.
        kv_reserved_bytes, kv_used_bytes: most bytes of cache owned, and holding wanted tokens.
        peak_memory_bytes: highest ``memory_bytes`` of a step.
        limit_share: median of the steps after the prefill: their passes' share of the device's limit (``achieved``).
        limit_bound: what bound most of these steps.
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
    target_passes_per_token: float | None
    kv_reserved_bytes: int
    kv_used_bytes: int
    peak_memory_bytes: int
    limit_share: float | None
    limit_bound: Bound | None


def measure(events: Iterable[Event]) -> Metrics:
    """Metrics of a run, finished or not."""
    events = list(events)
    commits = [event for event in events if isinstance(event, Committed)]
    steps = [event for event in events if isinstance(event, StepTimed)]
    proposed = [event for event in events if isinstance(event, Proposed)]
    accepted = [event for event in events if isinstance(event, Judged) and event.accepted]

    generated = sum(len(commit.token_ids) for commit in commits)
    later = generated - len(commits[0].token_ids) if commits else 0
    decode_ms = commits[-1].t_ms - commits[0].t_ms if commits else 0.0
    gaps = inter_token_ms(commits)
    rounds = len({event.step for event in proposed})
    window = max((event.position for event in proposed), default=-1) + 1
    by_position = np.bincount([event.position for event in accepted], minlength=window)
    passes = [step for step in steps if step.step_kind != "prefill"]
    limits = next((limits_of(event) for event in events if isinstance(event, RunStarted)), None)
    near = [found for step in passes if limits and (found := achieved(step, limits))]

    return Metrics(
        generated_tokens=generated,
        # A run that was preempted is prefilled again, and then finds what it left itself.
        cached_prompt_tokens=next((event.cached_tokens for event in events if isinstance(event, Prefilled)), 0),
        elapsed_ms=events[-1].t_ms if events else 0.0,
        ttft_ms=commits[0].t_ms if commits else None,
        tokens_per_second=1000 * later / decode_ms if decode_ms > 0 else None,
        itl_p50_ms=float(np.percentile(gaps, 50)) if gaps else None,
        itl_p99_ms=float(np.percentile(gaps, 99)) if gaps else None,
        mean_acceptance_length=1 + len(accepted) / rounds if rounds else None,
        draft_acceptance_rate=len(accepted) / len(proposed) if proposed else None,
        acceptance_by_position=tuple(float(count) / rounds for count in by_position) if rounds else (),
        target_passes_per_token=len(passes) / later if later else None,
        kv_reserved_bytes=max((step.kv_reserved_bytes for step in steps), default=0),
        kv_used_bytes=max((step.kv_used_bytes for step in steps), default=0),
        peak_memory_bytes=max((step.memory_bytes for step in steps), default=0),
        limit_share=statistics.median(found.share for found in near) if near else None,
        limit_bound=statistics.mode(found.bound for found in near) if near else None,
    )


def inter_token_ms(events: Iterable[Event]) -> list[float]:
    """Inter-token latency of every token after the first commit, in milliseconds.

    The tokens of one commit arrive together; each counts as the time since the commit before, divided by
    their number.
    """
    gaps: list[float] = []
    for before, commit in itertools.pairwise(event for event in events if isinstance(event, Committed)):
        tokens = len(commit.token_ids)
        gaps += [(commit.t_ms - before.t_ms) / tokens] * tokens
    return gaps
