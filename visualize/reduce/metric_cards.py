"""The numbers above the picture, of a run and of a pool: few, each with its unit and a sentence that says what it is.

Beside each is the previous run's number, so that switching a toggle and running again is a comparison.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.trace.events import RunStarted
from lab.trace.metrics import Metrics
from lab.trace.roofline import BEATEN, OVERHEAD
from lab.util.messages import counted
from visualize.format_numbers import byte_unit, digits, three

DASH = "–"
TOO_LOW = "limit measured too low"
"""What makes more than 100% of a limit possible."""
UNUSED = "not the limit"
WHY_UNUSED = (
    "This low, neither memory nor compute is the limit. On a GPU, the model is too small for it: launching a pass "
    "takes longer than the pass. On a CPU, other programs have the cores."
)
NOISE = 0.1
"""A change by less than this share is called neither better nor worse: single runs of the same settings scatter."""


@dataclass(frozen=True)
class Reading:
    """A number as shown; ``size`` is its value for the ratio to another run's: of two numbers, one's. ``note``: what
    is said where nothing is compared. ``more``: what is added to what the readout is."""

    value: str = DASH
    unit: str = ""
    size: float | None = None
    note: str = ""
    more: str = ""


@dataclass(frozen=True)
class Readout:
    """A number's place: ``read`` gets it from a run's metrics, or from a pool's counts, that have one. ``better``: 1
    where more is better, -1 where less is, 0 where neither. ``large``: what a run is about."""

    key: str
    label: str
    read: Callable[[Any], Reading]
    about: str = ""
    always: bool = True
    better: int = 0
    large: bool = False


@dataclass(frozen=True)
class PreviousRun:
    """The run that the current one is compared with: its start event and its metrics."""

    started: RunStarted
    metrics: Metrics


def speed_reading(speed: float | None) -> Reading:
    return Reading() if speed is None else Reading(three(speed), "tok/s", speed)


def ms_reading(*ms: float | None) -> Reading:
    """One time, or two of which the first is compared."""
    return Reading() if None in ms else Reading(*shown_ms(*ms), ms[0])


def _pass(metrics: Metrics) -> Reading:
    passes = metrics.target_passes_per_token
    return Reading(f"{1 / passes:.2f}", "", 1 / passes) if passes else Reading()


def _accepted(metrics: Metrics) -> Reading:
    rate = metrics.draft_acceptance_rate
    if rate is None:
        return Reading()
    places = ", ".join(f"{100 * kept:.0f}" for kept in metrics.acceptance_by_position)
    more = f"Accepted in {places}% of the rounds{', from the first draft token to the last' * (', ' in places)}."
    accepted = sum(metrics.acceptance_by_position)  # a round, on average
    if rate and accepted / rate < len(metrics.acceptance_by_position) - 1e-6:
        more += " Not all rounds had so many draft tokens."
    return Reading(f"{rate:.0%}".rstrip("%"), "%", rate, more=more)


def _variation(metrics: Metrics) -> Reading:
    moved = metrics.mean_total_variation
    return Reading() if moved is None else Reading(f"{100 * moved:.1f}", "%", moved)


def _kv(metrics: Metrics) -> Reading:
    reserved, more = metrics.kv_reserved_bytes, ""
    if metrics.state_bytes:
        scale, unit = byte_unit(metrics.state_bytes)
        more = f"Beside it, the recurrent layers' state: {digits(metrics.state_bytes / scale)} {unit} at any length."
    if not reserved:
        return Reading(more=more)
    scale, unit = byte_unit(reserved)
    used = f"{digits(metrics.kv_used_bytes / scale)} / {digits(reserved / scale)}"
    return Reading(used, unit, reserved, more=more)


def _rollback(metrics: Metrics) -> Reading:
    last = metrics.rollback
    if last is None:
        return Reading()
    more = ""
    if last.snapshots_ms is not None and last.recompute_ms is not None:
        kept, again = (" ".join(shown_ms(ms)) for ms in (last.snapshots_ms, last.recompute_ms))
        used = "snapshots" if last.method == "snapshots" else "computing again"
        more = (
            f"Keeping the state after every draft token: {kept} a round in these layers; computing the accepted ones "
            f"again: {again}. Used: {used}."
        )
    return replace(ms_reading(metrics.rollback_ms), more=more)


def _limit(metrics: Metrics) -> Reading:
    share = metrics.roofline_fraction
    if share is None:
        return Reading()
    if share < OVERHEAD:
        return Reading(f"{100 * share:.0f}", "%", share, note=UNUSED, more=WHY_UNUSED)
    return Reading(f"{100 * share:.0f}", "%", share, note=TOO_LOW if share > BEATEN else "")


def _memory(metrics: Metrics) -> Reading:
    peak = metrics.peak_memory_bytes
    if not peak:
        return Reading()
    return Reading(f"{peak / 1e6:.0f}", "MB") if peak < 10e9 else Reading(digits(peak / 1e9), "GB")


def readouts(page: str, read: Mapping[str, Callable[[Any], Reading]]) -> tuple[Readout, ...]:
    """The readouts of a page as ``readouts.toml`` has them. ``read``: by key."""
    return tuple(Readout(key, read=read[key], **how) for key, how in LABELS[page].items())


LABELS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    Path(__file__).parents[1].joinpath("readouts.toml").read_text("utf-8")
)
"""By page and key, what the readouts are called and are."""
READOUTS = readouts(
    "run",
    {
        "speed": lambda metrics: speed_reading(metrics.tokens_per_second),
        "pass": _pass,
        "accepted": _accepted,
        "variation": _variation,
        "kv": _kv,
        "first": lambda metrics: ms_reading(metrics.ttft_ms),
        "found": lambda metrics: Reading(f"{metrics.cached_prompt_tokens}"),
        "gaps": lambda metrics: ms_reading(metrics.itl_p50_ms, metrics.itl_p99_ms),
        "rollback": _rollback,
        "limit": _limit,
        "memory": _memory,
    },
)
"""Those of a run."""


def labels(readouts: Sequence[Readout] = READOUTS) -> list[dict[str, str]]:
    """The readouts without their numbers, for the page to lay out in advance."""
    return [{name: getattr(one, name) for name in ("key", "label", "about", "always", "large")} for one in readouts]


def rows(
    metrics: Metrics, config: Mapping[str, Any], before: PreviousRun | None = None, *, over: bool = True
) -> dict[str, list[str]]:
    """A run's cards. "Prefix hits" has none where nothing could be found in the cache, "TV from target" where the rule
    is lossless, "Rollback" where no recurrent state went back."""
    findable = config["enable_prefix_caching"] or metrics.cached_prompt_tokens
    there = {"found": findable, "variation": metrics.mean_total_variation is not None}
    there["rollback"] = metrics.rollback is not None
    readouts = [one for one in READOUTS if one.always or there[one.key]]
    return cards(readouts, metrics, before.metrics if before else None, over=over)


def cards(readouts: Sequence[Readout], now: Any, before: Any = None, *, over: bool) -> dict[str, list[str]]:
    """Per readout: value, unit, and the previous run's value and, once the run is over, the change to it, or a note.
    Then, where there is something to say, what is added to what the readout is, and whether the change is for the
    "better" or the "worse". Only large ones have room for both the change and the value before."""
    shown = {}
    for readout in readouts:
        reading = readout.read(now)
        was = Reading() if before is None else readout.read(before)
        text, more, change = beside(reading, was, over=over), reading.more, ""
        if over and was.value != DASH:
            change = trend(reading, was, readout.better)
            if not readout.large and text.endswith(")"):
                text, more = text[: text.rindex(" (")], f"{more} Previous run: {was.value} {was.unit}".strip() + "."
        row = [reading.value, reading.unit, text or reading.note, more, change]
        while len(row) > 3 and not row[-1]:
            row.pop()
        shown[readout.key] = row
    return shown


def trend(now: Reading, was: Reading, better: int) -> str:
    """ "better" or "worse" than the previous run's number, or neither. ``better``: as in ``Readout``."""
    if not (better and now.size and was.size) or abs(now.size / was.size - 1) < NOISE:
        return ""
    return "better" if (now.size > was.size) == (better > 0) else "worse"


def beside(now: Reading, was: Reading, *, over: bool) -> str:
    """The previous run's value and, once the run is over, the change to it: a ratio or, of a percentage, points. Empty
    if it has none."""
    if was.value == DASH:
        return ""
    if over and (was.value, was.unit) == (now.value, now.unit):
        return "the same"
    value = was.value if was.unit == now.unit else f"{was.value} {was.unit}"
    if not (over and now.size and was.size):
        return f"was {value}"
    arrow = "▲" if now.size > was.size else "▼"
    if now.unit == "%":
        return f"{arrow} {counted(abs(round(100 * now.size) - round(100 * was.size)), 'point')} (was {value})"
    ratio = now.size / was.size
    times = f"{ratio:.1g}×" if ratio < 0.1 else f"{ratio:.2g}×" if ratio < 99.5 else f"{ratio:.0f}×"
    return f"{arrow} {times} (was {value})"


def shown_ms(*ms: float) -> tuple[str, str]:
    """Milliseconds as shown, and their unit: seconds if the last and longest is a second or more."""
    if ms[-1] < 999.5:
        return " / ".join(f"{value:.1f}" if value < 99.95 else f"{value:.0f}" for value in ms), "ms"
    return " / ".join(digits(value / 1000) for value in ms), "s"
