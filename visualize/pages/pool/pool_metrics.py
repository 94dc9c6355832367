"""The numbers of many sequences: few, each with its unit and a sentence that says what it is."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.trace.events import Admitted, BlockEvicted, Committed, Finished, Preempted, RunStarted
from lab.trace.recorder import BatchEvent
from visualize.format_numbers import three
from visualize.reduce.metric_cards import DASH, Reading, beside, shown_ms

Readings = dict[str, Reading]
ABOUT = {
    "speed": ("Decode speed", "Tokens per second, all requests together, from the first arrival on."),
    "first": ("TTFT p50 / max", "Time to first token, from a request's arrival, waiting included."),
    "most": ("Peak concurrency", "Most requests running together."),
    "finished": ("Finished", "Requests that are done, of all in the run."),
    "vain": (
        "KV waste",
        "Slots of blocks in use that hold no token: mean over the steps. A contiguous cache reserves them in advance.",
    ),
    "found": (
        "Prefix cache hits",
        "Prompt tokens found by their prefix, or in another continuation, so not computed: counted when each "
        "sequence first joined.",
    ),
    "preempted": (
        "Preemptions",
        "How often a request gave up all its blocks because the pool, or the memory for a step, ran out. Small: "
        "tokens, its own included, that were found when it rejoined.",
    ),
    "evicted": ("Evictions", "Cached blocks whose prefix was forgotten to make room."),
}
"""Each readout's label and what it is."""


def labels() -> list[dict[str, object]]:
    """The readouts without their numbers, for the page to lay out in advance."""
    return [{"key": key, "label": label, "about": about, "always": True} for key, (label, about) in ABOUT.items()]


@dataclass(frozen=True)
class PoolWorkload:
    """A run's inputs: which sequences come, and the settings by their labels, in words."""

    coming: tuple[Any, ...]
    settings: dict[str, str]


@dataclass(frozen=True)
class PreviousPoolRun:
    """The run that the current one is compared with: its inputs and its readings."""

    asked: PoolWorkload
    readings: Readings


@dataclass
class Tally:
    """Running counts over the events. ``tokens`` is by sequence; times are in milliseconds."""

    expected: int
    prompts: int = 0  # tokens, of the sequences that have joined
    tokens: dict[int, int] = field(default_factory=dict)
    most: int = 0
    finished: int = 0
    failed: int = 0
    found: int = 0
    found_again: int = 0
    preempted: int = 0
    evicted: int = 0
    began_ms: float | None = None
    now_ms: float = 0.0
    _came: dict[int, float] = field(default_factory=dict)
    _waiting: dict[int, int] = field(default_factory=dict)  # prompt tokens of those that have never joined
    _first: list[float] = field(default_factory=list)
    _vain: list[float] = field(default_factory=list)

    def take(self, entry: BatchEvent) -> None:
        self.now_ms = entry.t_ms
        self.began_ms = entry.t_ms if self.began_ms is None else self.began_ms
        match entry.event:
            case RunStarted():
                self.tokens[entry.owner], self._came[entry.owner] = 0, entry.t_ms
                self._waiting[entry.owner] = len(entry.event.prompt_token_ids)
            case Admitted():
                if entry.owner in self._waiting:
                    self.prompts += self._waiting.pop(entry.owner)
                    self.found += entry.event.cached_tokens
                else:
                    self.found_again += entry.event.cached_tokens
            case Committed():
                if not self.tokens[entry.owner]:
                    self._first.append(entry.t_ms - self._came[entry.owner])
                self.tokens[entry.owner] += len(entry.event.token_ids)
            case Preempted():
                self.preempted += 1
            case BlockEvicted():
                self.evicted += 1
            case Finished(reason="error"):
                self.failed += 1
            case Finished(reason=reason) if reason != "cancelled":
                self.finished += 1

    def step(self, used: float | None, running: int) -> None:
        """End a step in which so many sequences ran, and a share ``used`` of the live blocks' slots held tokens of a
        text."""
        self.most = max(self.most, running)
        if used is not None:
            self._vain.append(1 - used)

    @property
    def ms(self) -> float:
        """Since the first arrival."""
        return self.now_ms - (self.began_ms or 0.0)

    def notes(self) -> dict[str, str]:
        """The notes that some readings have beside them."""
        again = {"preempted": f"{self.found_again:,} found"} if self.found_again else {}
        return {"found": f"of {self.prompts:,}"} | again

    def readings(self) -> Readings:
        total = sum(self.tokens.values())
        speed = 1000 * total / self.ms if total and self.ms > 0 else None
        first = statistics.median(self._first) if self._first else None
        vain = statistics.fmean(self._vain) if self._vain else None
        return {
            "speed": Reading() if speed is None else Reading(three(speed), "tok/s", speed),
            "first": Reading() if first is None else Reading(*shown_ms(first, max(self._first)), first, "p50"),
            "most": Reading(f"{self.most}", "", self.most),
            "finished": Reading(f"{self.finished} / {self.expected}"),
            "vain": Reading() if vain is None else Reading(f"{100 * vain:.0f}", "%", vain),
            "found": Reading(f"{self.found:,}", "tok", self.found),
            "preempted": Reading(f"{self.preempted}", "", self.preempted),
            "evicted": Reading(f"{self.evicted}", "", self.evicted),
        }


def rows(
    now: Readings, before: Mapping[str, Reading] | None, notes: Mapping[str, str], *, over: bool
) -> dict[str, list[str]]:
    """Per readout: value, unit, and the previous run's value or a note."""
    was = before or {}
    shown = {}
    for key, reading in now.items():
        compared = beside(reading, was.get(key, Reading(DASH)), over=over)
        shown[key] = [reading.value, reading.unit, compared or notes.get(key, "")]
    return shown
