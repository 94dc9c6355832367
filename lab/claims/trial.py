"""A series of experiments: their engine, their size, a way to be stopped, and turns for others in between."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, TypeVar

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.measure.measuring import CAREFUL, decode, take_turns
from lab.measure.workload import held_out_prompts
from lab.trace.run import Run

T = TypeVar("T")


class Stopped(Exception):
    """The trial was cancelled."""


@dataclass
class Trial:
    """A series of experiments, one after another. Its methods raise Stopped once it was cancelled.

    Attributes:
        engine: gives one of the embedded target with the "matched" or the "mismatched" draft.
        small: use sizes for a test: it takes less time, and the figures are not to be trusted.
        careful: repeat ``CAREFUL`` times as often.
        cancelled: once set, the experiment ends with ``Stopped`` before its next measurement.
        report: called with a few words on what is under way.
        share: of the present experiment that is done, 0 to 1, as far as it consists of countable pieces.
        turn: entered around every measurement, so that others' can come in between.
        seconds: spent on measurements so far, without waiting for a turn.
    """

    engine: Callable[[str], Engine]
    _: KW_ONLY
    small: bool = False
    careful: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)
    report: Callable[[str], None] = lambda line: None
    turn: Callable[[], AbstractContextManager[None]] = nullcontext
    share: float = 0.0
    seconds: float = 0.0
    measured: dict[tuple[str, str], Any] = field(default_factory=dict)

    def measure(self, work: Callable[[], T]) -> T:
        """Do a piece of work that is timed, or long, when it is this trial's turn."""
        with self.turn():
            if self.cancelled.is_set():
                raise Stopped
            began = time.perf_counter()
            try:
                return work()
            finally:
                self.seconds += time.perf_counter() - began

    def begin(self, words: str, piece: int, of: int) -> None:
        """Report that piece ``piece``, from 1, begins."""
        self.share = (piece - 1) / of
        self.report(words)

    def take_turns(self, rows: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, list[T]]:
        """Each row ``repeats`` times in changing order, after one run to warm up."""
        repeats *= CAREFUL if self.careful else 1
        total, done = len(rows) * (repeats + 1), 0

        def counted(name: str, work: Callable[[], T]) -> T:
            nonlocal done
            done += 1
            self.begin(f"run {done} of {total}: {name}", done, total)
            return self.measure(work)

        return take_turns({name: partial(counted, name, work) for name, work in rows.items()}, repeats)

    def generate(
        self, engine: Engine, prompt: str, config: EngineConfig, max_tokens: int, temperature: float = 0.0
    ) -> Run:
        """A run of exactly ``max_tokens`` tokens, part of a measurement. All runs have the same seed. Raises LabError:
        the run failed, or part of its setting was given up."""
        sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=1, ignore_eos=True)
        run = decode(engine, prompt, config, sampling, cancelled=self.cancelled)
        if run is None:
            raise Stopped
        return run

    def once(self, measurement: Callable[..., T], **how: Any) -> T:
        """``measurement(self, **how)``, made once for all claims that rest on it."""
        key = measurement.__name__, repr(how)
        if key not in self.measured:
            self.measured[key] = measurement(self, **how)
        return self.measured[key]


def passage(engine: Engine, tokens: int) -> str:
    """About ``tokens`` tokens of prose that the embedded pair was not trained on (some of it twice, if need be)."""
    ids = engine.tokenizer(" ".join(held_out_prompts()), verbose=False)["input_ids"]
    return engine.tokenizer.decode((ids * (tokens // len(ids) + 1))[:tokens])
