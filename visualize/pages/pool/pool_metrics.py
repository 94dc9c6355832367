"""The numbers of many sequences, counted from their events."""

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lab.trace.events import Admitted, BlockEvicted, Committed, Finished, Preempted, RunStarted
from lab.trace.recorder import BatchEvent
from visualize.reduce.metric_cards import Reading, ms_reading, readouts, speed_reading


class PoolWorkload(NamedTuple):
    """A run's inputs (``visualize.pool_inputs``): which sequences come, and the settings by their labels, in words."""

    coming: tuple[Any, ...]
    settings: dict[str, str]


@dataclass
class Tally:
    """Running counts over the events. ``tokens`` is by sequence; times are in milliseconds."""

    expected: int
    prompts: int = 0  # tokens, of the sequences that have joined
    tokens: dict[int, int] = field(default_factory=dict)
    most: int = 0
    ended: Counter[str] = field(default_factory=Counter)  # sequences, by the reason
    found: int = 0
    found_again: int = 0
    preempted: int = 0
    evicted: int = 0
    began_ms: float | None = None
    now_ms: float = 0.0
    vain: list[float] = field(default_factory=list)  # of the slots of live blocks, by step
    first: list[float] = field(default_factory=list)
    _came: dict[int, float] = field(default_factory=dict)
    _waiting: dict[int, int] = field(default_factory=dict)  # prompt tokens of those that have never joined

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
                    self.first.append(entry.t_ms - self._came[entry.owner])
                self.tokens[entry.owner] += len(entry.event.token_ids)
            case Preempted():
                self.preempted += 1
            case BlockEvicted():
                self.evicted += 1
            case Finished():
                self.ended[entry.event.reason] += 1

    def step(self, used: float | None, running: int) -> None:
        """End a step in which so many sequences ran, and a share ``used`` of the live blocks' slots held tokens of a
        text."""
        self.most = max(self.most, running)
        if used is not None:
            self.vain.append(1 - used)

    @property
    def finished(self) -> int:
        """Sequences that neither failed nor were stopped."""
        return self.ended.total() - self.ended["error"] - self.ended["cancelled"]

    @property
    def ms(self) -> float:
        """Since the first arrival."""
        return self.now_ms - (self.began_ms or 0.0)

    @property
    def speed(self) -> float | None:
        """Tokens per second, all sequences together."""
        total = sum(self.tokens.values())
        return 1000 * total / self.ms if total and self.ms > 0 else None


def _first(tally: Tally) -> Reading:
    first = tally.first
    return ms_reading(statistics.median(first), max(first)) if first else Reading()


def _vain(tally: Tally) -> Reading:
    vain = statistics.fmean(tally.vain) if tally.vain else None
    return Reading() if vain is None else Reading(f"{100 * vain:.0f}", "%", vain)


def _preempted(tally: Tally) -> Reading:
    again = f"{tally.found_again:,} found" if tally.found_again else ""
    return Reading(f"{tally.preempted}", "", tally.preempted, note=again)


READOUTS = readouts(
    "pool",
    {
        "speed": lambda tally: speed_reading(tally.speed),
        "first": _first,
        "most": lambda tally: Reading(f"{tally.most}", "", tally.most),
        "finished": lambda tally: Reading(f"{tally.finished} / {tally.expected}"),
        "vain": _vain,
        "found": lambda tally: Reading(f"{tally.found:,}", "tok", tally.found, note=f"of {tally.prompts:,}"),
        "preempted": _preempted,
        "evicted": lambda tally: Reading(f"{tally.evicted}", "", tally.evicted),
    },
)
