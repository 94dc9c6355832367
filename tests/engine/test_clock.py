"""Where a step's time went, by a clock that the test sets."""

from __future__ import annotations

import pytest
import torch

from lab.util import step_timer as clock
from lab.util.step_timer import StepTimer


def test_parts_of_the_same_name_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0, 0.0, 0.001, 0.003, 0.006, 0.010])  # two at the beginning, three marks, and when it is read
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(seconds))
    step = StepTimer(torch.device("cpu"))
    for part in ("rest", "verify", "rest"):
        step.mark(part)
    parts, whole = step.read()
    assert parts == pytest.approx({"rest": 1 + 3, "verify": 2})
    assert whole == pytest.approx(10)
