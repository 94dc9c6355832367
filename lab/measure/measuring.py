"""Timed runs: warmed up, checked, and interleaved, so that a busy machine slows all rows alike."""

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.measure.workload import PlannedRequest
from lab.trace.events import Committed, Event, FellBack, StepKind, StepTimed
from lab.trace.run import Run
from lab.util.device_memory import is_out_of_memory

CAREFUL = 3
"""Times as many repeats as usual, where somebody asks for a careful measurement."""
T = TypeVar("T")
Name = TypeVar("Name")
Watch = Callable[[int, Event], None]
"""Gets every event of a run under way, with the number of tokens so far."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    lower: float
    median: float
    upper: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(*statistics.quantiles(values, n=4, method="inclusive")) if len(values) > 1 else cls(*3 * [*values])


def shuffled(rows: Iterable[T], times: int) -> Iterator[list[T]]:
    """All rows, ``times`` times over: in a random order, then in its reverse, then in a new one.

    Over an even number of times each row comes before another as often as after it. The same in every process.
    """
    order, shuffle = list(rows), random.Random(0).shuffle
    for turn in range(times):
        if turn % 2:
            order.reverse()
        else:
            shuffle(order)
        yield list(order)


class RunTurn(NamedTuple):
    """Run ``number`` of ``of``, from 1. ``repeat`` 0: to warm up, not counted."""

    number: int
    of: int
    name: str
    repeat: int


def turns(names: Iterable[Name], repeats: int) -> list[RunTurn]:
    """The order of runs: all rows once to warm up, then ``repeats`` times all of them, ``shuffled``."""
    names = list(names)
    order = [(name, repeat) for repeat, some in enumerate([names, *shuffled(names, repeats)]) for name in some]
    return [RunTurn(number, len(order), name, repeat) for number, (name, repeat) in enumerate(order, 1)]


def take_turns(
    rows: Mapping[Name, Callable[[], T]], repeats: int, report: Callable[[str], None] = lambda line: None
) -> dict[Name, list[T]]:
    """Call every row ``repeats`` times, in ``turns``."""
    results: dict[Name, list[T]] = {name: [] for name in rows}
    for turn in turns(rows, repeats):
        result = rows[turn.name]()
        if turn.repeat:
            results[turn.name].append(result)
            if turn.number % len(rows) == 0:
                report(f"  repeat {turn.repeat} of {repeats} done")
    return results


def decode(
    engine: Engine,
    prompt: str,
    config: EngineConfig,
    sampling: SamplingParams,
    *,
    cancelled: threading.Event | None = None,
    watch: Watch = lambda tokens, event: None,
) -> Run | None:
    """A ``sound`` run, or None once ``cancelled`` is set. Raises PromptError: a prompt that cannot be decoded;
    LabError: see ``sound``."""
    [run] = _watched([engine.stream(prompt, config, sampling, cancelled=cancelled)], watch)
    return None if cancelled and cancelled.is_set() else sound(run, engine)


def _watched(requests: Iterable[Iterable[Event]], watch: Watch) -> list[Run]:
    """The runs of requests, one after another."""
    runs, tokens = [], 0
    for request in requests:
        events = []
        for event in request:
            events.append(event)
            if isinstance(event, Committed):
                tokens += len(event.token_ids)
            watch(tokens, event)
        runs.append(Run(events))
    return runs


def finish(
    engine: Engine,
    requests: Sequence[PlannedRequest],
    config: EngineConfig,
    *,
    cancelled: threading.Event | None = None,
    watch: Watch = lambda tokens, event: None,
) -> tuple[list[Run], float]:
    """Submit all requests and wait for all. Setting ``cancelled`` ends them.

    Returns the runs, and the seconds they took together from when all were queued. Nothing is computed before that, and
    reading a long prompt takes the host milliseconds in which a GPU would idle. Raises LabError: one of them failed, or
    part of its setting was given up.
    """
    begins = [engine.prepare(one.prompt, config, one.sampling, cancelled=cancelled) for one in requests]
    submitted = [request for begin in begins for request in begin()]
    began = time.perf_counter()
    runs = _watched(submitted, watch)  # waiting for one drives all of them
    if engine.device.startswith("cuda"):
        torch.cuda.synchronize(engine.device)
    seconds = time.perf_counter() - began
    if not (cancelled and cancelled.is_set()):
        for run in runs:
            refuse_failure(run, engine)
    return runs, seconds


def make_ready(engine: Engine, config: EngineConfig, longest: int) -> None:
    """Allocate the block pool of a run of up to ``longest`` tokens, and capture its steps: no part of the run's time.

    Windows that the run's end cuts short are captured too. Called before every run: a GPU may not have room for the
    pools of all settings at once, and a pool that was dropped has lost its graphs.
    """
    windows = range(1, config.num_speculative_tokens + 1) if config.speculative != "off" else [1]
    try:
        for gamma in windows:
            cut = replace(config, num_speculative_tokens=gamma)
            engine.warm_up(cut, longest=min(longest, engine.context_length))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):  # else the run itself reports it
            raise


def refuse_failure(run: Run, engine: Engine) -> None:
    """Refuse a run for which ``engine`` did not do what its setting says.

    Without a C compiler it did: torch then computes all of an engine's runs alike. Raises LabError: it failed, or part
    of its setting was given up.
    """
    start = f"decoding {run.prompt[:40]!r}"
    if run.reason == "error":
        raise LabError(f"{start} failed: {run.finished.message}")
    for fallen in (event for event in run.events if isinstance(event, FellBack)):
        if fallen.reason != engine.kernel_failure:
            raise LabError(f"{start} went on without its {fallen.part}: {fallen.reason}")


def sound(run: Run, engine: Engine) -> Run:
    """The run itself, if it did what its setting says and has a time between tokens. Raises LabError: see
    ``refuse_failure``; or it has only one token."""
    refuse_failure(run, engine)
    if len(run.token_ids) < 2:
        raise LabError(f"{run.prompt[:40]!r} leaves the model room for one token only. Shorten the prompt.")
    return run


def steps(run: Run, kind: StepKind) -> list[StepTimed]:
    """The run's steps of one kind, in order."""
    return [event for event in run.events if isinstance(event, StepTimed) and event.step_kind == kind]
