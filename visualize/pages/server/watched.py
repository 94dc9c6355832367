"""A watched server's readings, reduced to what the page shows of them."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from lab.vllm.server_metrics import (
    ACCEPTED,
    DRAFTED,
    DRAFTS,
    KV_USAGE,
    PREEMPTIONS,
    RUNNING,
    WAITING,
    Rates,
    ServerMetrics,
    rates,
)
from visualize.charts import server_charts as figures
from visualize.reduce.metric_cards import DASH
from visualize.text import visible

SHARES_S = 60.0
"""Readouts of shares cover the last minute: in a single second there may have been nothing."""

ANEW = "The counters did not go on: the server was restarted, or several servers answer at this address in turn. "
ANEW_S = 10.0
"""Seconds for which that is said: a reading is replaced after one."""
SPECULATION = {DRAFTS, DRAFTED, ACCEPTED}

Message = dict[str, Any]


class ServerReducer:
    """Turns readings into messages, each with what is new. The page's time is in seconds since ``began``."""

    def __init__(self, address: str, began: float) -> None:
        self._address, self._began = address, began
        self._readings: deque[ServerMetrics] = deque()  # of the last minute, without a gap or a restart between
        self._tops: deque[tuple[float, float, float]] = deque()  # of what is in view: when, requests, tokens/s
        self._anew = -math.inf  # when the counters last did not go on

    def begins_anew(self, reading: ServerMetrics) -> bool:
        """True if the counters do not go on from those of the reading before: another server answers, or one anew."""
        return bool(self._readings) and rates(self._readings[-1], reading).restarted

    def take(self, reading: ServerMetrics, models: Sequence[str]) -> Message:
        """The message of a reading, and what has happened since the previous one."""
        step = rates(self._readings[-1], reading) if self._readings else None
        if self.begins_anew(reading):
            self._readings.clear()
            self._anew = reading.at
        self._readings.append(reading)
        while reading.at - self._readings[0].at > SHARES_S:
            self._readings.popleft()
        minute = rates(self._readings[0], reading) if len(self._readings) > 1 else None
        usage, running, waiting = (reading.values.get(name) for name in (KV_USAGE, RUNNING, WAITING))
        speed = step.tokens_per_second if step else None
        lines = {"usage": [usage], "queue": [running, waiting], "speed": [speed]}
        lines["hits"] = [step.prefix_hit_share if step else None]
        again = ANEW * (reading.at < self._anew + ANEW_S)
        return self._at(reading.at, lines, max(running or 0.0, waiting or 0.0), speed or 0.0) | {
            "charts": {"acceptance": figures.acceptance(minute.acceptance_by_position if minute else ())},
            "readouts": _readouts(reading, speed, minute),
            "say": f"{again}{about(self._address, reading, models)}",
        }

    def lost(self, at: float, problem: str) -> Message:
        """Why there was no reading, and a gap in every line."""
        self._readings.clear()
        self._anew = -math.inf  # what is said now explains it
        gaps = {name: [None] * lines for name, lines in figures.LINES.items()}
        say = f"{visible(problem)} Asking again."
        return self._at(at, gaps, 0.0, 0.0) | {"say": say, "problem": True}

    def _at(self, at: float, lines: dict[str, list[float | None]], requests: float, speed: float) -> Message:
        seconds = at - self._began
        self._tops.append((seconds, requests, speed))
        while self._tops[0][0] < seconds - figures.SECONDS:
            self._tops.popleft()
        most, top_speed = (max(column) for column in list(zip(*self._tops, strict=True))[1:])
        return {"points": figures.points(seconds, lines), "layout": figures.layout(seconds, most, top_speed)}


def about(address: str, reading: ServerMetrics, models: Sequence[str]) -> str:
    """A sentence on what is watched, and what it does not report."""
    served = f" serves {visible(models[0])}{' and others' * (len(models) > 1)}" if models else ""
    pool = (
        f", {reading.num_blocks:,} blocks of {reading.block_size}" if reading.num_blocks and reading.block_size else ""
    )
    missing = [name for name in reading.missing if name not in SPECULATION]
    says = [f"{address}{served}{pool}."]
    if set(reading.missing) >= SPECULATION:
        says.append("It does not speculate, so there are no draft tokens to report.")
    if missing:
        says.append(f"Its metrics lack {', '.join(missing)}: what needs them stays empty.")
    return " ".join(says)


def _readouts(reading: ServerMetrics, speed: float | None, minute: Rates | None) -> dict[str, list[str]]:
    """Per readout: value, unit, and the time span it covers."""
    counts = {"running": RUNNING, "waiting": WAITING, "preempted": PREEMPTIONS}
    rows = {key: [_number(reading.values.get(name)), "", ""] for key, name in counts.items()}
    rows["preempted"][2] = "since its start"
    rows["usage"] = [_percent(reading.values.get(KV_USAGE)), "%", ""]
    rows["speed"] = [_number(speed), "tok/s", ""]
    rows["hits"] = [_percent(minute.prefix_hit_share if minute else None), "%", "last minute"]
    length = minute.mean_acceptance_length if minute else None
    rows["length"] = [DASH if length is None else f"{length:.2f}", "", "last minute"]
    rows["kept"] = [_percent(minute.draft_acceptance_rate if minute else None), "%", "last minute"]
    return {key: [value, unit if value != DASH else "", small] for key, (value, unit, small) in rows.items()}


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:.0f}"
