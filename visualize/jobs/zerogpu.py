"""ZeroGPU, a kind of Hugging Face Space: a GPU for the duration of a call, in a process that is forked for it.

Only what the call yields, pickled, outlives it: so the engine, its pool and its clocks are made inside it. The server's
own process never touches CUDA. Anywhere else ``spaces.GPU`` leaves a function unchanged, and all of this runs like any
other engine.
"""

import contextlib
import contextvars
import functools
import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterator
from queue import Empty, SimpleQueue

import gradio as gr
import spaces

from lab import Engine, load_engine
from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Prompted
from lab.errors import LabError
from lab.models.chat_template import ChatTemplate
from lab.registry import EMBEDDED
from lab.trace.events import Event, Finished, StepTimed
from lab.trace.recorder import EventListener
from visualize.jobs.job_queue import TICK, Load

BEGINNING = 45.0
"""Seconds in a call's estimate for the fork, the models, and kernels: to compile all took 17, on a slow core."""
TOKEN = 0.02
"""Seconds in it per token."""
ABORTED = "It may have needed the GPU for longer than it had asked for. Run it again: compiled kernels are kept."
"""Advice when the process that had the GPU is gone."""

Step = list[Event] | str | LabError
"""A step's events; before the first, what is waited for; or the error that there is instead (see ``Engine.submit``):
of one that is raised in another process, only its class's name would be told."""


class BorrowedGPU:
    """The part of an engine that ``visualize.jobs.live_run`` needs; it decodes in calls that have a GPU.

    Args:
        pair: an embedded pair's name.
        here: its engine in this process, on the CPU, which says how many blocks there are.
        watch: told of every event, as an engine's own would be, which cannot hear from another process.
    """

    _owners = itertools.count()

    def __init__(self, pair: str, here: Engine, watch: EventListener) -> None:
        self._pair, self._here, self._watch = pair, here, watch
        self.wait_reason = ""

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self._here.chat_template

    def default_num_blocks(self, config: EngineConfig) -> int:
        return self._here.default_num_blocks(config)

    def models(self, config: EngineConfig) -> None:
        """Nothing is compiled on a borrowed GPU."""

    def place_in_queue(self, cancelled: threading.Event) -> None:
        """Every call has a pool of its own, so nobody is ahead of it."""

    def stream(
        self, prompt: Prompted, config: EngineConfig, sampling: SamplingParams, *, cancelled: threading.Event
    ) -> Iterator[Event]:
        """The events of a run, as each step ends. Once ``cancelled`` is set it ends, even while a GPU is waited for:
        then without any event.

        Raises:
            LabError: see ``Engine.submit``; or no GPU was lent, or not for long enough.
        """
        owner, last = next(self._owners), None
        self.wait_reason = "a GPU"
        try:
            with contextlib.closing(_until(cancelled, decode(self._pair, prompt, config, sampling))) as steps:
                for step in steps:
                    self.wait_reason = step if isinstance(step, str) else ""
                    for last in () if isinstance(step, str) else step:
                        self._watch(owner, time.perf_counter(), last)
                        yield last
        except gr.Error as error:  # as ``spaces`` says why there is no GPU, or none any more
            reported = f"{error.title}: {error.message}"
            raise LabError(f"{reported}. {ABORTED}" if "aborted" in reported else reported) from error
        finally:
            self.wait_reason = ""
        if last is not None and not isinstance(last, Finished):
            ended = Finished(t_ms=last.t_ms, reason="cancelled", text="", message="")
            self._watch(owner, time.perf_counter(), ended)
            yield ended


def _until(cancelled: threading.Event, steps: Generator[Step, None, None]) -> Iterator[list[Event] | str]:
    """``steps``, until ``cancelled`` is set. A thread reads them, which is left behind before the first: ``spaces``
    cannot be told that a GPU is no longer wanted while it waits for one, and models and kernels take seconds. With the
    next word from there, the thread ends the call, which gives the GPU back.

    Raises:
        Exception: what ``steps`` raises, or has instead of a step.
    """
    read: SimpleQueue[list[Event] | str | Exception | None] = SimpleQueue()
    left = threading.Event()

    def reads() -> None:
        try:
            with contextlib.closing(steps):
                for step in steps:
                    if left.is_set():
                        return
                    if isinstance(step, LabError):
                        raise step
                    read.put(step)
            read.put(None)
        except Exception as error:
            read.put(error)

    own = contextvars.copy_context()  # of the visitor's request, whose GPU it is
    reader = threading.Thread(target=own.run, args=(reads,), name="decode-lab-borrow", daemon=True)
    reader.start()
    computes = False
    try:
        while not cancelled.is_set():
            try:
                step = read.get(timeout=TICK)
            except Empty:
                continue
            if step is None:
                return
            if isinstance(step, Exception):
                raise step
            computes = isinstance(step, list)
            yield step
    finally:
        left.set()
        if computes:  # until the GPU is given back, a step later: the visitor's next run may need it
            reader.join()


def borrowing(load: Load, watch: Callable[[str], EventListener]) -> Load:
    """``load``, but with engines that decode on a borrowed GPU. ``watch``: see ``Monitor``."""
    return lambda pair: BorrowedGPU(pair, load(pair), watch(EMBEDDED[pair].label))


def seconds(pair: str, prompt: str, config: EngineConfig, sampling: SamplingParams) -> int:
    """A call's estimated duration. The shorter it is, the sooner a Space gives the call a GPU; a call that takes longer
    is broken off."""
    return round(BEGINNING + TOKEN * sampling.max_tokens)


@spaces.GPU(duration=seconds)
def decode(pair: str, prompt: str, config: EngineConfig, sampling: SamplingParams) -> Generator[Step, None, None]:
    """A run, step by step."""
    events: list[Event] = []
    try:
        yield "the models to be loaded on the GPU"
        engine = _engine(pair)
        yield "the first step on the GPU, for which kernels may have to be compiled"
        for event in engine.stream(prompt, config, sampling):
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
