"""A gate before anything is timed: one second of plain decoding steps tells whether the machine is quiet."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.measure.measuring import Spread
from lab.trace.events import StepTimed

SECONDS = 1.0
BUSY = 0.3
"""Above this share of the median, the distance between the quartiles of a quiet machine's steps does not come."""
PROMPT = "Once upon a time"
TOKENS = 200
"""Most tokens of a run: a long text's steps are slower on any machine."""
FEWEST = 8
"""Fewest steps that have quartiles worth a sentence."""


@dataclass(frozen=True)
class Gate:
    """``steps``: the spread of plain decoding steps, in milliseconds."""

    steps: Spread

    @property
    def busy(self) -> bool:
        return self.steps.upper - self.steps.lower > BUSY * self.steps.median

    @property
    def said(self) -> str:
        """The finding in a sentence."""
        lower, median, upper = (f"{ms:.3g}" for ms in (self.steps.lower, self.steps.median, self.steps.upper))
        if self.busy:
            return (
                f"This machine is busy: half of the plain decoding steps took {lower} to {upper} ms. "
                "It measures anyway, but small differences will drown in the noise."
            )
        return f"This machine is quiet: a plain decoding step takes {median} ms, half of them {lower} to {upper}."


def look(engine: Engine, cancelled: threading.Event) -> Gate | None:
    """Decode greedily for ``SECONDS``. None: cancelled, or too few steps in that time to say anything.

    Raises LabError: the run failed.
    """
    prompt_run = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    small = EngineConfig(num_blocks=-(-engine.context_length // EngineConfig.block_size))  # one context is enough
    for _ in engine.stream(PROMPT, small, SamplingParams(max_tokens=FEWEST, ignore_eos=True), cancelled=cancelled):
        pass  # the first run of a process is slower
    until, found = time.monotonic() + SECONDS, []
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
    return Gate(Spread.of(found)) if len(found) >= FEWEST and not cancelled.is_set() else None
