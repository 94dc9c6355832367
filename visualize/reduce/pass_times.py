"""Columns of the charts of passes as a run grows: how long each took, and how many tokens it computed again."""

from collections import deque
from typing import Any

from lab.trace.events import StepTimed
from lab.util.messages import counted
from visualize.charts import timing_chart as timing
from visualize.charts.base import Patch, nice_ceiling, window


class TimingView:
    """Bars of ms, the speed over the latest passes, and a label on a prefill's bar, which may be cut off."""

    def __init__(self) -> None:
        self._pace: deque[tuple[int, float]] = deque(maxlen=timing.SMOOTH)  # tokens and ms of the latest passes
        self._in_view: deque[tuple[int, float, float]] = deque()  # visible passes: step, ms, speed
        self._tops = (1.0, 500.0)
        self._prefill: tuple[int, float] | None = None  # the latest one's step and ms
        self._said: Patch = []  # its label

    def take(self, timed: StepTimed, made: int, near: str) -> list[Patch]:
        """Add a pass that made so many tokens; ``near``: how near it came to the device's limit."""
        if timed.step_kind == "prefill":
            self._prefill, speed = (timed.step, timed.total_ms), None
        else:
            self._pace.append((made, timed.total_ms))
            tokens, spent = (sum(column) for column in zip(*self._pace, strict=True))
            speed = 1000 * tokens / spent if spent > 0 else 0.0
            self._in_view.append((timed.step, timed.total_ms, speed))
        first = window(timed.step)[0]
        while self._in_view and self._in_view[0][0] < first:
            self._in_view.popleft()
        self._fit(first)
        parts = (timed.draft_ms, timed.verify_ms, timed.sample_ms + timed.rest_ms)
        bars: list[Patch] = [[i, None, {"x": timed.step, "y": round(ms, 3)}] for i, ms in enumerate(parts)]
        for _, _, row in bars[: len(timing.MODELS)]:
            row["customdata"] = near
        if speed is not None:
            bars.append([len(parts), None, {"x": timed.step, "y": round(speed, 2)}])
        return bars + self._of_prefill(first)

    def layout(self, step: int) -> dict[str, Any]:
        ms, speed = self._tops
        return {
            "xaxis.range": window(step),
            "yaxis.range": [0, ms],
            "yaxis2.range": [0, speed],
            "yaxis2.tickvals": [0.4 * speed, 0.8 * speed],  # no 0: it would touch a pass number
        }

    def _fit(self, first: int) -> None:
        """Fit the axes to what is visible: the steps after ``first``."""
        _, longest, fastest = (max(column) for column in zip((0, 0.0, 0.0), *self._in_view, strict=True))
        step, ms = self._prefill or (-1, 0.0)
        if step > first and (not longest or ms <= timing.DWARFS * longest):
            longest = max(longest, ms)
        highest = longest, fastest or self._tops[1] / 2
        self._tops = tuple(map(axis_top, self._tops, highest))

    def _of_prefill(self, first: int) -> list[Patch]:
        """The label of the latest prefill's bar, if it changed; it is hidden once the bar is left of ``first``."""
        if self._prefill is None:
            return []
        (step, ms), was = self._prefill, self._said
        said = f"prefill {ms:.1f} ms{', cut off' * (ms > self._tops[0])}" if step > first else ""
        self._said = [len(timing.PARTS) + 1, 0 if was else None, {"x": step, "y": 0.94, "text": said}]
        return [self._said] if self._said[2] != (was and was[2]) else []


def axis_top(current: float, highest: float) -> float:
    """The top of an axis that moves rarely: it follows the ``highest`` value in view only when that no longer fits or
    is dwarfed."""
    wanted = nice_ceiling(1.15 * highest)
    return wanted if highest > current or wanted < current / 2.5 else current


class RecomputedView:
    """Tokens that the target computed anew, again, and at most in one pass: of a run without a cache."""

    def __init__(self) -> None:
        self._new = self._again = self._most = 0

    def take(self, timed: StepTimed, drafted: int) -> list[Patch]:
        """Add a pass. New are its draft tokens and the token before them, which the last pass chose; in the first pass,
        all tokens."""
        whole, step = timed.target_tokens, timed.step
        new = drafted + 1 if self._new else whole
        self._new, self._again, self._most = self._new + new, self._again + whole - new, max(self._most, whole)
        said = f"{counted(new, 'new token')}, {whole - new:,} computed before"
        return [[0, None, {"x": step, "y": whole, "customdata": said}], [1, None, {"x": step, "y": new}]]

    def layout(self, step: int) -> dict[str, Any]:
        """The axes, on which every label is a whole number."""
        return {"xaxis.range": [0, max(5.0, nice_ceiling(step))], "yaxis.range": [0, nice_ceiling(1.05 * self._most)]}

    def caption(self) -> str:
        """The totals of the run so far."""
        return f"{self._again:,} of {counted(self._new + self._again, 'token')}"
