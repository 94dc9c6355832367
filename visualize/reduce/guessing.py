"""The adaptive window in words: why it changed, and when guessing is tried again while it is 0."""

from __future__ import annotations

from lab.engine.adaptive_window import PROBE_EVERY
from lab.trace.events import WindowChanged


class Guessing:
    """Follows a run's window. ``why_none``: while it is 0; else empty."""

    def __init__(self, window: int) -> None:
        self._window = window
        self.why_none = ""
        self._observed = 0  # rounds that the window learnt from; counted as it counts them

    def passed(self, *, judged: bool) -> None:
        """A pass that was no prefill; whether it judged guesses."""
        self._observed += judged or not self._window

    def changed(self, event: WindowChanged) -> str:
        was, self._window = self._window, event.gamma
        if (was, event.gamma) == (0, 1) and self._observed % PROBE_EVERY == 0 and event.verify_ms is not None:
            self.why_none = ""
            return "The window goes from 0 to 1 as a trial: without guesses nothing shows how many would be accepted."
        if event.draft_ms is None or event.verify_ms is None:
            unknown = "guess" if event.draft_ms is None else "pass over fewer tokens" if event.gamma else "plain pass"
            costs = f"what a {unknown} costs"
            self.why_none = "" if event.gamma else f"to measure {costs}"
            return f"The window goes from {was} to {event.gamma} as a trial, to measure {costs}: that is not yet known."
        self.why_none = "" if event.gamma else "a round of them would cost more than it gains"
        return (
            f"The window went from {was} to {event.gamma}: {event.acceptance:.0%} of judged guesses are expected to be "
            f"accepted, a guess takes {event.draft_ms:.1f} ms, a pass {event.verify_ms:.1f} ms."
        )

    def none(self) -> str:
        """Why there were no guesses, and when guessing is tried again."""
        passes = PROBE_EVERY - self._observed % PROBE_EVERY
        again = "after this pass" if passes == 1 else f"within {passes} passes"
        return f"No guesses: {self.why_none}; guessing is tried again {again}."
