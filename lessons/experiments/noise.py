"""``noise``: a setting measured against itself, and against one whose difference is known."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from pydantic import Field

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.measure.comparison import Case, in_turns
from lab.measure.interval import LEVEL, RESAMPLES, SEED, ratios
from lab.measure.measuring import RunTurn, decode
from lab.trace.events import Event
from lab.trace.run import Run
from lab.util.messages import counted
from lessons.experiments.base import Experiment, Load, Measured, Watch, Work

PROMPT = "Once upon a time there was a clockmaker whose clocks all told a slightly different time, and"
CONFIG = EngineConfig(num_blocks=32)
ROWS = {"one": "a setting", "same": "the same setting again", "longer": "the same, with more tokens to generate"}
FIGURES = {"ms": "from the first token to the last, by repeat"}
OTHERS = {
    "spread": {"ratio": "slowest over fastest of all runs of the one setting", "runs": "how many these are"},
    "blocks": {"ratio": "median of the second half of the repeats over that of the first"},
    "first": {"ratio": "the whole first run of a fresh engine, prompt included, over the median of later ones"},
    "truth": {"ratio": "what longer / one would be if every token took the same time"},
    "resampled": {
        f"{row}_{end}": f"end of the interval of the median of {row} / one"
        for row in ("same", "longer")
        for end in ("low", "high")
    },
}
MOST_PAIRS = 36
SIDE = 512
"""Of the matrices with which a disturbing thread keeps the processor busy."""


class Noise(Experiment):
    """``repeats`` of three rows in turns: two are the same in everything, the third generates ``more`` tokens.

    ``disturb``: another thread computes all the time.
    """

    repeated = timed = True
    most_repeats = MOST_PAIRS

    tokens: int = Field(default=41, ge=11, le=200)
    more: int = Field(default=4, ge=1, le=40)
    repeats: int = Field(default=12, ge=6, le=MOST_PAIRS)
    disturb: bool = False

    def names(self) -> Mapping[str, Any]:
        return {**dict.fromkeys(ROWS, dict.fromkeys(FIGURES)), **OTHERS}

    def work(self, load: Load, cancelled: threading.Event, watch: Watch) -> Work:
        engine = load("matched").clone()
        watch("the first run of a fresh engine", 0.0)
        with disturbance(self.disturb):
            first = decode(engine, PROMPT, CONFIG, self._sampling("one"), cancelled=cancelled)
        if first is None:
            return Measured({})
        yield

        def report(turn: RunTurn, tokens: int, event: Event | None) -> None:
            doing = f"repeat {turn.repeat} of {self.repeats}" if turn.repeat else "warming up"
            watch(f"{ROWS[turn.name]}, {doing}: {counted(tokens, 'token')}", (turn.number - 1) / turn.of)

        cases = {name: Case(engine, PROMPT, CONFIG, self._sampling(name)) for name in ROWS}
        turns = in_turns(cases, self.repeats, cancelled=cancelled, watch=report)
        runs: dict[str, list[Run]] = {name: [] for name in ROWS}
        while True:
            with disturbance(self.disturb):
                made = next(turns, None)
            if made is None:
                break
            turn, run = made
            if turn.repeat:
                runs[turn.name].append(run)
            yield
        return Measured({} if cancelled.is_set() else self._figures(runs, first))

    def _sampling(self, row: str) -> SamplingParams:
        tokens = self.tokens + (self.more if row == "longer" else 0)
        return SamplingParams(max_tokens=tokens, temperature=0.0, seed=1, ignore_eos=True)

    def _figures(self, runs: Mapping[str, Sequence[Run]], first: Run) -> dict[str, dict[str, Any]]:
        ms = {name: [decoding_ms(run) for run in some] for name, some in runs.items()}
        alike = [*ms["one"], *ms["same"]]
        half = self.repeats // 2
        later = statistics.median(_whole_ms(run) for run in runs["one"])
        found: dict[str, dict[str, Any]] = {name: {"ms": some} for name, some in ms.items()}
        found["spread"] = {"ratio": max(alike) / min(alike), "runs": len(alike)}
        found["blocks"] = {"ratio": statistics.median(ms["one"][half:]) / statistics.median(ms["one"][:half])}
        found["first"] = {"ratio": _whole_ms(first) / later}
        found["truth"] = {"ratio": 1 + self.more / (self.tokens - 1)}
        found["resampled"] = {
            f"{row}_{end}": value
            for row in ("same", "longer")
            for end, value in zip(("low", "high"), resampled(ratios(ms[row], ms["one"])), strict=True)
        }
        return found

    def slowed(self, engine: Engine, runs: int) -> dict[str, Any]:
        """Milliseconds of ``runs`` runs of one setting, and from which on another thread computes as well."""
        ms = []
        for i in range(-1, runs):  # one to warm up
            with disturbance(i >= runs // 2):
                run = decode(engine, PROMPT, CONFIG, self._sampling("one"))
            ms += [decoding_ms(run)] if i >= 0 else []
        return {"ms": ms, "disturbed": runs // 2}


def decoding_ms(run: Run) -> float:
    """From the first token to the last."""
    return 1000 * (len(run.token_ids) - 1) / run.metrics.tokens_per_second


def _whole_ms(run: Run) -> float:
    return run.metrics.ttft_ms + decoding_ms(run)


def resampled(values: Sequence[float]) -> tuple[float, float]:
    """Interval of the median: as many values are drawn again, with replacement, many times (Efron, 1979)."""
    drawn = np.random.default_rng(SEED).choice(values, (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@contextmanager
def disturbance(wanted: bool) -> Iterator[None]:
    """A thread that multiplies matrices meanwhile, if one is ``wanted``."""
    over = threading.Event()
    matrix = torch.ones(SIDE, SIDE)

    def compute() -> None:
        while not over.is_set():
            torch.mm(matrix, matrix)

    thread = threading.Thread(target=compute, daemon=True)
    if wanted:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if wanted:
            thread.join()
