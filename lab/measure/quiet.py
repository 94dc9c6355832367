"""A gate before anything is timed: one second of plain decoding steps tells whether the machine is quiet."""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.measure.measuring import Spread
from lab.trace.events import StepTimed

SECONDS = 1.0
WAITED = 0.2
"""Most that a process on a quiet machine waits for a core."""
BUSY = 0.3
"""Above this share of the median, the distance between the quartiles of a quiet machine's steps does not come."""
PROMPT = "Once upon a time"
TOKENS = 200
"""Most tokens of a run: a long text's steps are slower on any machine."""
FEWEST = 8
"""Fewest steps that have quartiles worth a sentence."""


@dataclass(frozen=True)
class Gate:
    """``steps``: the spread of plain decoding steps, in milliseconds. ``waited``: the share of the time in which this
    process could run that it waited for a core; 0 where the system does not say (only Linux does)."""

    steps: Spread
    waited: float = 0.0

    @property
    def busy(self) -> bool:
        return self.waited > WAITED or self.steps.upper - self.steps.lower > BUSY * self.steps.median

    @property
    def sentence(self) -> str:
        """The finding in a sentence."""
        lower, median, upper = (f"{ms:.3g}" for ms in (self.steps.lower, self.steps.median, self.steps.upper))
        if self.busy:
            what = f"half of the plain decoding steps took {lower} to {upper} ms"
            if self.waited > WAITED:
                what = f"a plain decoding step took {median} ms, and waited for a core {self.waited:.0%} of the time"
            return f"This machine is busy: {what}. It measures anyway, but small differences will drown in the noise."
        return f"This machine is quiet: a plain decoding step takes {median} ms, half of them {lower} to {upper}."


def look(engine: Engine, cancelled: threading.Event) -> Gate | None:
    """Decode greedily for ``SECONDS``. None: cancelled, or too few steps in that time to say anything.

    Raises LabError: the run failed.
    """
    prompt_run = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    small = EngineConfig(num_blocks=-(-engine.context_length // EngineConfig.block_size))  # one context is enough
    for _ in engine.stream(PROMPT, small, SamplingParams(max_tokens=FEWEST, ignore_eos=True), cancelled=cancelled):
        pass  # the first run of a process is slower
    until, found, before = time.monotonic() + SECONDS, [], _on_cores()
    while time.monotonic() < until and not cancelled.is_set():
        enough = threading.Event()
        steps = []
        for event in engine.stream(PROMPT, small, prompt_run, cancelled=enough):
            if isinstance(event, StepTimed) and event.step_kind == "decode":
                steps.append(event.total_ms)
            if time.monotonic() > until or cancelled.is_set():
                enough.set()
        if not steps:
            break
        found += steps[1:]  # the first may allocate
    if len(found) < FEWEST or cancelled.is_set():
        return None
    ran, waited = (max(0.0, now - then) for now, then in zip(_on_cores(), before, strict=True))
    return Gate(Spread.of(found), waited / (ran + waited) if waited else 0.0)


def _on_cores() -> tuple[float, float]:
    """Seconds for which the threads of this process ran, and for which they waited for a core, so far."""
    ran = waited = 0.0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            on, off, _ = map(int, path.read_text().split())
            ran, waited = ran + on / 1e9, waited + off / 1e9
    return ran, waited
