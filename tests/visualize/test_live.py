"""A run in its thread, and the transcript that a page gets of it."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from lab.config import EngineConfig
from lab.models.load_progress import current_loading
from lab.trace.events import Event, Finished, StepTimed
from tests import tiny_models
from tests.coroutines import complete
from tests.visualize.picture import Picture
from tests.visualize.scripted import ScriptedEngine
from tests.waiting import until
from visualize.jobs.job_queue import JobQueue
from visualize.jobs.live_run import LiveRun
from visualize.pages.pool.page import BatchRun
from visualize.pool_inputs import PoolInputs
from visualize.reduce.frames import Reducer, lines
from visualize.run_settings import Settings


def start(engine: ScriptedEngine, queue: JobQueue | None = None, **settings: Any) -> LiveRun:
    return LiveRun(queue or JobQueue(), lambda pair: engine, Settings(**settings))


def test_a_refusal_names_the_setting() -> None:
    engine = tiny_models.engine("llama", "good")
    lab = Settings(prompt="a b", speculative="off", block_size=64, num_blocks=4, max_tokens=280)
    pool = PoolInputs(sequences=1, tokens=200, shared=0, num_blocks=8, block_size=4)
    for kind, settings in ((LiveRun, lab), (BatchRun, pool)):
        assert "num_blocks" in records(whole(kind(JobQueue(), lambda pair: engine, settings)))[-1]["problem"]


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def reported(run: LiveRun) -> list[str]:
    """The messages that a page gets of the run."""

    async def hear() -> list[str]:
        return [message async for _, message in run.channel.read()]

    return complete(hear())


def whole(run: LiveRun) -> str:
    return "".join(reported(run))


def looks(run: LiveRun) -> Iterator[str]:
    """The transcript read independently of the page, piece by piece."""
    return run.transcript(partial(lines, Reducer()))


def test_a_run_is_streamed_to_its_end() -> None:
    messages = reported(start(ScriptedEngine(0.03), max_tokens=60))
    assert len(messages) >= 3
    shown = Picture()
    for record in records("".join(messages)):
        if "seq" in record:
            shown.apply(record)
    assert len(shown.tokens) == 60
    assert shown.finished == {"reason": "length", "message": ""}


def test_a_run_can_be_stopped() -> None:
    run = start(ScriptedEngine(0.02), max_tokens=1000)
    stream = looks(run)
    for text in stream:
        if '"tokens"' in text:
            break

    def steps() -> int:
        return sum(isinstance(event, StepTimed) for event in list(run.events))

    run.cancelled.set()
    made = steps()
    *_, text = stream
    assert steps() <= made + 1  # only the step under way is finished
    assert isinstance(run.events[-1], Finished)
    assert run.events[-1].reason == "cancelled"
    assert "all freed" in records(text)[-1]["captions"]["blocks"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"prompt": ""}, "The prompt is empty"),
        ({"prompt": "x" * 4001}, "The prompt has 4,001 characters; the most is 4,000."),
        ({"kv_cache": False, "kv_dtype": "int8", "paged": False}, "Turn the cache on"),
    ],
)
def test_a_mistake_is_explained(settings: dict[str, Any], sentence: str) -> None:
    text = whole(start(ScriptedEngine(), **settings))
    assert sentence in records(text)[-1]["problem"]


def test_a_run_that_is_over_keeps_no_engine() -> None:
    """It is kept for its visitor, and the engine may be a pair that has made room for another."""
    engine = ScriptedEngine()
    gone = weakref.ref(engine)
    run = LiveRun(JobQueue(), lambda pair, loaded=[engine]: loaded.pop(), Settings(max_tokens=3))
    del engine
    whole(run)
    assert run.done.wait(10)
    gc.collect()
    assert gone() is None
    assert run.status() == ""


def test_loading_shows_progress_and_can_be_stopped() -> None:
    begun = threading.Event()

    def load(pair: str) -> ScriptedEngine:
        loading = current_loading()
        loading.begin("large", torch.nn.Linear(1000, 1000, bias=False), 4)
        loading.took("weight")
        begun.set()
        while True:
            time.sleep(0.01)
            loading.check()

    run = LiveRun(JobQueue(), load, Settings())
    stream = looks(run)
    assert begun.wait(10)
    assert any("large" in records(text)[-1].get("status", "") for text in stream)
    run.cancelled.set()
    *_, text = stream
    assert records(text)[-1]["problem"].startswith("Loading was stopped.")
    assert run.status() == ""


def test_runs_take_turns_and_say_that_they_wait() -> None:
    queue, engine = JobQueue(), ScriptedEngine(0.02)
    first = start(engine, queue, max_tokens=1000)
    until(lambda: first.events)
    second = start(engine, queue, max_tokens=3)
    news = looks(second)
    assert {"status": "Waiting: 1 run is before yours."} in records(next(news))
    assert not second.events
    first.cancelled.set()
    assert '"tokens"' in "".join(news)
    assert first.done.wait(10)


@pytest.mark.parametrize(
    ("place", "awaited", "said"),
    [
        (
            [2, 2, 1, 0],
            [],
            [
                "Waiting for room in the pool: 2 runs are before yours.",
                "Waiting for room in the pool: 1 run is before yours.",
                "Waiting for room in the pool: you are next.",
            ],
        ),
        ([], ["a CUDA graph", "another"], ["Waiting for a CUDA graph …", "Waiting for another …"]),
    ],
)
def test_waiting_for_blocks_and_for_what_a_step_needs_is_reported(
    place: list[int], awaited: list[str], said: list[str]
) -> None:
    begins = threading.Event()

    class Waits(ScriptedEngine):
        """Begins once it has been asked for often enough."""

        def place_in_queue(self, cancelled: threading.Event) -> int | None:
            return place.pop(0) if place else None

        @property
        def wait_reason(self) -> str:
            if awaited:
                return awaited.pop(0)
            if not place:
                begins.set()
            return ""

        def stream(self, *asked: Any, **named: Any) -> Iterator[Event]:
            assert begins.wait(10)
            yield from super().stream(*asked, **named)

    messages = records("".join(reported(start(Waits(), max_tokens=3))))
    assert [record["status"] for record in messages if record.get("status")] == said


def test_a_run_stopped_while_waiting_leaves_the_line() -> None:
    queue, engine = JobQueue(), ScriptedEngine(0.02)
    first = start(engine, queue, max_tokens=1000)
    until(lambda: first.events)
    second = start(engine, queue)
    until(lambda: queue.ahead(second))
    second.cancelled.set()
    assert second.done.wait(5)
    assert not second.events
    assert not first.done.is_set()
    text = whole(second)
    assert records(text)[-1] == {"stopped": "Stopped before it began."}
    first.cancelled.set()
    assert first.done.wait(10)


def test_a_run_that_cannot_be_shown_is_stopped_and_reported() -> None:
    class Nonsense(ScriptedEngine):
        def stream(self, *asked: Any, **named: Any) -> Iterator[Event]:
            run, *rest = super().stream(*asked, **named)
            yield replace(run, config={})
            for event in rest:
                if named["cancelled"].wait(0.01):
                    return
                yield event

    run = start(Nonsense(), max_tokens=1000)
    problem = records(whole(run))[-1]["problem"]
    assert problem.startswith("The run was stopped, because it could not be shown (KeyError: ")
    assert run.done.wait(10)


def test_threads_end_with_the_run() -> None:
    before = set(threading.enumerate())  # those of others may go on
    run = start(ScriptedEngine(0.01), max_tokens=3)
    own = {thread for thread in threading.enumerate() if thread.name.startswith("decode-lab-")} - before
    assert own
    reported(run)
    until(lambda: not any(thread.is_alive() for thread in own))
    assert run.done.is_set()


class Compiling(ScriptedEngine):
    """Compiles until the test lets it finish."""

    def __init__(self) -> None:
        super().__init__()
        self.compiled = threading.Event()

    def models(self, config: EngineConfig) -> None:
        assert not config.torch_compile or self.compiled.wait(10)


def test_waiting_for_the_compiler_is_reported() -> None:
    engine = Compiling()
    run = start(engine, kernels="reference", torch_compile=True, max_tokens=3)
    reported = looks(run)
    assert any("Compiling the layers: 0 s so far" in news for news in reported)
    engine.compiled.set()
    assert '"tokens"' in "".join(reported)
    assert run.done.wait(10)
    assert not run.problem
    assert run.status() == "", "it is compiled"


def test_stopping_does_not_wait_for_the_compiler() -> None:
    engine, queue = Compiling(), JobQueue()
    run = start(engine, queue, kernels="reference", torch_compile=True, max_tokens=3)
    reported = looks(run)
    assert any("Compiling" in news for news in reported)
    run.cancelled.set()
    assert run.done.wait(9)
    assert "Stopped before it began." in "".join(reported)
    assert '"tokens"' in whole(start(engine, queue, max_tokens=3))
    engine.compiled.set()
