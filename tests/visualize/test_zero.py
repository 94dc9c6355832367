"""A run on a borrowed GPU: the usual generator, whose yields could come from another process."""

from __future__ import annotations

import pickle
import runpy
import sys
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab import EngineConfig, Run, SamplingParams, load_engine
from lab.config import ConfigError, PromptError
from lab.engines import EMBEDDED
from lab.trace.events import Event, Finished, StepTimed
from tests.browser.conftest import started
from tests.programs.calls import call
from visualize.run.frames import Reducer
from visualize.run.settings import Settings
from visualize.run.transcript import lines
from visualize.server import zero
from visualize.server.live import LiveRun, transcript
from visualize.server.work import Line

CONFIG = EngineConfig(speculative="draft", paged=True)


@pytest.fixture(scope="module")
def borrowed() -> zero.BorrowedGPU:
    return zero.borrowing(zero._engine)("matched")


def test_its_yields_can_be_pickled_and_make_up_the_run(borrowed: zero.BorrowedGPU) -> None:
    sampling = SamplingParams(max_tokens=20, seed=3, temperature=0.8)
    yields = list(zero.decode("matched", "A fox", CONFIG, sampling))
    sent = [pickle.loads(pickle.dumps(events)) for events in yields]
    assert sent == yields
    assert all(isinstance(events[-1], StepTimed | Finished) for events in yields)
    run = Run(event for events in sent for event in events)
    assert run.reason == "length"
    assert Run(borrowed.stream("A fox", CONFIG, sampling, cancelled=threading.Event())).token_ids == run.token_ids


def test_its_pool_is_as_large_as_that_of_the_engine_here(borrowed: zero.BorrowedGPU) -> None:
    assert borrowed.default_num_blocks(CONFIG) == zero._engine("matched").default_num_blocks(CONFIG)


def test_a_process_that_is_kept_loads_a_pair_once() -> None:
    assert zero._engine("matched") is zero._engine("matched")


def test_a_borrowed_run_is_of_the_pair_that_was_asked_for() -> None:
    load, sampling = zero.borrowing(zero._engine), SamplingParams(max_tokens=1)
    runs = [Run(load(pair).stream("A fox", CONFIG, sampling, cancelled=threading.Event())) for pair in EMBEDDED]
    assert [run.started.draft for run in runs] == [load_engine(draft=pair).draft.name for pair in EMBEDDED]
    assert runs[0].started.draft != runs[1].started.draft


def test_only_decoding_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    lent: list[tuple[str, object]] = []
    spaces = SimpleNamespace(GPU=lambda duration: lambda does: lent.append((does.__name__, duration)) or does)
    monkeypatch.setitem(sys.modules, "spaces", spaces)
    seconds = runpy.run_path(zero.__file__)["seconds"]
    assert lent == [("decode", seconds)]


def test_a_borrowed_run_is_shown_like_any_other(borrowed: zero.BorrowedGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, asked, decode = threading.Event(), threading.Event(), zero.decode

    def held(*request: object) -> Iterator[list[Event]]:
        begun.set()
        assert asked.wait(10)
        yield from decode(*request)

    monkeypatch.setattr(zero, "decode", held)
    run = LiveRun(Line(), lambda pair: borrowed, Settings(prompt="A fox", max_tokens=12))
    assert begun.wait(10)
    assert run.status() == "", "it waits for nobody, and captures nothing"
    asked.set()
    told = "".join(transcript(run, partial(lines, Reducer())))
    assert '"finished":{"reason":"length"' in told


def test_stopping_ends_a_borrowed_run_after_the_current_step(
    borrowed: zero.BorrowedGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, decode = [], zero.decode

    def watched(*request: object) -> Iterator[list[Event]]:
        try:
            yield from decode(*request)
        finally:
            left.append(True)

    monkeypatch.setattr(zero, "decode", watched)
    cancelled, events = threading.Event(), []
    for event in borrowed.stream("A fox", CONFIG, SamplingParams(max_tokens=99, seed=1), cancelled=cancelled):
        events.append(event)
        if isinstance(event, StepTimed) and event.step == 3:
            cancelled.set()
    assert left == [True]
    run = Run(events)
    assert run.reason == "cancelled"
    assert sum(isinstance(event, StepTimed) for event in events) == 4


def test_a_borrowed_run_that_is_stopped_as_it_ends_has_one_end(borrowed: zero.BorrowedGPU) -> None:
    cancelled, events = threading.Event(), []
    for event in borrowed.stream("A fox", CONFIG, SamplingParams(max_tokens=3, seed=1), cancelled=cancelled):
        events.append(event)
        if isinstance(event, Finished):
            cancelled.set()
    assert [event.reason for event in events if isinstance(event, Finished)] == ["length"]


def test_errors_are_reported_as_anywhere_else(borrowed: zero.BorrowedGPU) -> None:
    with pytest.raises(PromptError, match="empty"):
        list(borrowed.stream("", CONFIG, SamplingParams(), cancelled=threading.Event()))


def test_layers_are_not_compiled_on_a_borrowed_gpu(borrowed: zero.BorrowedGPU) -> None:
    compiled = EngineConfig(kernels="reference", torch_compile=True)
    with pytest.raises(ConfigError, match="torch_compile=True does not work on a borrowed GPU"):
        list(borrowed.stream("A fox", compiled, SamplingParams(), cancelled=threading.Event()))


GUARDED = """
import sys, torch
def guarded(name, real):
    def call(*values):
        assert "spaces" in sys.modules, f"torch.cuda.{name} was asked before spaces was there"
        return real(*values)
    return call
for name in ("is_available", "device_count", "init"):
    setattr(torch.cuda, name, guarded(name, getattr(torch.cuda, name)))
"""
"""Run at Python's start, in place of a CUDA build of torch: once asked for devices, no forked process can use one."""
SPACES = """
import sys
if (gradio := sys.modules.get("gradio")) and not hasattr(gradio, "Blocks"):
    raise ImportError("as the real one refuses Gradio itself")
def GPU(duration):
    return lambda function: function
"""


def test_a_zerogpu_space_starts_without_touching_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(GUARDED)
    (tmp_path / "spaces.py").write_text(SPACES)
    log = tmp_path / "log.txt"
    with started(log, SPACES_ZERO_GPU="true", PYTHONPATH=str(tmp_path)) as (address, _):
        with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
            assert answer.status == 200
        event, answer = call(address, "run", {"prompt": "A fox", "max_tokens": 3})
        assert event == "complete"
        assert '\\"device\\": \\"cpu\\"' in answer
    assert "Traceback" not in log.read_text(), log.read_text()


def test_the_time_estimate_grows_with_the_tokens() -> None:
    few, many = (zero.seconds("matched", "A fox", CONFIG, SamplingParams(max_tokens=n)) for n in (1, 1000))
    assert 15 <= few < many <= 60
