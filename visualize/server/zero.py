"""ZeroGPU, a kind of Hugging Face Space: a GPU for as long as a call lasts, in a process that is forked for it.

Nothing lives on but what the call yields, which is pickled: so the engine, its pool and its clocks are made inside it.
The server's own process never touches CUDA. Anywhere else ``spaces.GPU`` leaves a function as it is, and all of this
runs like any other engine.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator

import spaces

from lab import Engine, load_engine
from lab.config import ConfigError, EngineConfig, SamplingParams
from lab.trace.events import Event, Finished, StepTimed
from visualize.server.work import Load

BEGINNING = 20.0
"""Seconds of a call's estimate for the fork, the models and what is compiled."""
TOKEN = 0.02
"""Seconds of it for every token."""


class BorrowedGPU:
    """What ``visualize.server.live`` needs of an engine, decoded in calls that have a GPU.

    Args:
        pair: an embedded pair's name.
        here: its engine in this process, on the CPU: it knows how many blocks there are.
    """

    def __init__(self, pair: str, here: Engine) -> None:
        self._pair, self._here = pair, here

    def default_num_blocks(self, config: EngineConfig) -> int:
        return self._here.default_num_blocks(config)

    def models(self, config: EngineConfig) -> None:
        """Nothing is compiled there."""

    capturing = None
    """Nor is anything seen from here that is captured there."""

    def ahead(self, cancelled: threading.Event) -> None:
        """Its pool is its own: nobody is before it."""

    def stream(
        self, prompt: str, config: EngineConfig, sampling: SamplingParams, *, cancelled: threading.Event
    ) -> Iterator[Event]:
        """The events of a run, a step at a time. Once ``cancelled`` is set it ends after the step that comes next:
        the forked process cannot be told, only left. Raises ConfigError for layers that are to be compiled."""
        if config.torch_compile:
            raise ConfigError(
                "torch_compile=True does not work on a borrowed GPU: there is no compiler for it. Switch it off."
            )
        with contextlib.closing(decode(self._pair, prompt, config, sampling)) as steps:
            for events in steps:
                yield from events
                if cancelled.is_set() and not isinstance(events[-1], Finished):
                    yield Finished(t_ms=events[-1].t_ms, reason="cancelled", text="", message="")
                    return


def borrowing(load: Load) -> Load:
    """``load``, but what it gives decodes on a borrowed GPU."""
    return lambda pair: BorrowedGPU(pair, load(pair))


def seconds(pair: str, prompt: str, config: EngineConfig, sampling: SamplingParams) -> int:
    """How long a call is expected to take: the shorter, the sooner a Space gives it a GPU."""
    return round(BEGINNING + TOKEN * sampling.max_tokens)


@spaces.GPU(duration=seconds)
def decode(pair: str, prompt: str, config: EngineConfig, sampling: SamplingParams) -> Iterator[list[Event]]:
    """A run's events, those of each step together. Errors: see ``Engine.submit``."""
    events: list[Event] = []
    for event in _engine(pair).stream(prompt, config, sampling):
        events.append(event)
        if isinstance(event, StepTimed | Finished):
            yield events
            events = []


@functools.cache
def _engine(pair: str) -> Engine:
    """In the forked process, for as long as a Space keeps it."""
    return load_engine(draft=pair)
