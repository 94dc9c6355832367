"""ZeroGPU, a kind of Hugging Face Space: a GPU for the duration of a call, in a process that is forked for it.

Only what the call yields, pickled, outlives it: so the engine, its pool and its clocks are made inside it. The server's
own process never touches CUDA. Anywhere else ``spaces.GPU`` leaves a function unchanged, and all of this runs like any
other engine.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator

import gradio as gr
import spaces

from lab import Engine, load_engine
from lab.config import ConfigError, EngineConfig, LabError, SamplingParams
from lab.engines import EMBEDDED
from lab.trace.events import Event, Finished, StepTimed
from lab.trace.recorder import Watch
from visualize.server.work import Load

BEGINNING = 20.0
"""Seconds in a call's estimate for the fork, the models and compiling."""
TOKEN = 0.02
"""Seconds in it per token."""


class BorrowedGPU:
    """The part of an engine that ``visualize.server.live`` needs; it decodes in calls that have a GPU.

    Args:
        pair: an embedded pair's name.
        here: its engine in this process, on the CPU, which says how many blocks there are.
        watch: told of every event, as an engine's own would be, which cannot hear from another process.
    """

    _owners = itertools.count()

    def __init__(self, pair: str, here: Engine, watch: Watch) -> None:
        self._pair, self._here, self._watch = pair, here, watch
        self.waits_for = ""

    def default_num_blocks(self, config: EngineConfig) -> int:
        return self._here.default_num_blocks(config)

    def models(self, config: EngineConfig) -> None:
        """Nothing is compiled on a borrowed GPU."""

    def place_in_queue(self, cancelled: threading.Event) -> None:
        """Every call has a pool of its own, so nobody is ahead of it."""

    def stream(
        self, prompt: str, config: EngineConfig, sampling: SamplingParams, *, cancelled: threading.Event
    ) -> Iterator[Event]:
        """The events of a run, as each step ends. Once ``cancelled`` is set, it ends after the next step: the forked
        process cannot be notified, only abandoned.

        Raises:
            ConfigError: layers are to be compiled.
            LabError: see ``Engine.submit``; or no GPU was lent, or not for long enough.
        """
        if config.torch_compile:
            raise ConfigError(
                "torch_compile=True does not work on a borrowed GPU: there is no compiler for it. Switch it off."
            )
        owner = next(self._owners)
        self.waits_for = "a GPU, and for the models to be loaded there"
        try:
            for event in self._events(prompt, config, sampling, cancelled):
                self.waits_for = ""
                self._watch(owner, time.perf_counter(), event)
                yield event
        finally:
            self.waits_for = ""

    def _events(
        self, prompt: str, config: EngineConfig, sampling: SamplingParams, cancelled: threading.Event
    ) -> Iterator[Event]:
        try:
            with contextlib.closing(decode(self._pair, prompt, config, sampling)) as steps:
                for events in steps:
                    if isinstance(events, LabError):
                        raise events
                    yield from events
                    if cancelled.is_set() and not isinstance(events[-1], Finished):
                        yield Finished(t_ms=events[-1].t_ms, reason="cancelled", text="", message="")
                        return
        except gr.Error as error:  # as ``spaces`` says why there is no GPU, or none any more
            raise LabError(f"{error.title}: {error.message}") from error


def borrowing(load: Load, watch: Callable[[str], Watch]) -> Load:
    """``load``, but with engines that decode on a borrowed GPU. ``watch``: see ``Monitor``."""
    return lambda pair: BorrowedGPU(pair, load(pair), watch(EMBEDDED[pair].label))


def seconds(pair: str, prompt: str, config: EngineConfig, sampling: SamplingParams) -> int:
    """A call's estimated duration: the shorter it is, the sooner a Space gives the call a GPU."""
    return round(BEGINNING + TOKEN * sampling.max_tokens)


@spaces.GPU(duration=seconds)
def decode(pair: str, prompt: str, config: EngineConfig, sampling: SamplingParams) -> Iterator[list[Event] | LabError]:
    """A run's events, grouped by step, or the error that there is instead (see ``Engine.submit``): of one that is
    raised, only its class's name would be told."""
    events: list[Event] = []
    try:
        for event in _engine(pair).stream(prompt, config, sampling):
            events.append(event)
            if isinstance(event, StepTimed | Finished):
                yield events
                events = []
    except LabError as error:
        yield error


@functools.cache
def _engine(pair: str) -> Engine:
    """The engine in the forked process, for as long as a Space keeps that."""
    return load_engine(draft=pair)
