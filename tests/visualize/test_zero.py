"""A run on a borrowed GPU: the usual generator, whose yields could come from another process."""

from __future__ import annotations

import itertools
import os
import pickle
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import gradio as gr
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from lab import EngineConfig, Run, SamplingParams, load_engine
from lab.errors import LabError, PromptError
from lab.registry import EMBEDDED
from lab.trace.events import Finished, StepTimed
from tests.browser.conftest import ROOT
from tests.visualize.lending import lending
from tests.waiting import until
from visualize.jobs import zerogpu as zero
from visualize.jobs.job_queue import JobQueue
from visualize.jobs.live_run import LiveRun
from visualize.prometheus import EngineMetrics
from visualize.reduce.frames import Reducer, lines
from visualize.run_settings import Settings, from_link

pytestmark = pytest.mark.slow

CONFIG = EngineConfig(speculative="draft", paged=True)
INT8 = EngineConfig(kv_dtype="int8")


@pytest.fixture
def monitor() -> EngineMetrics:
    return EngineMetrics(JobQueue())


@pytest.fixture
def borrowed(monitor: EngineMetrics) -> zero.BorrowedGPU:
    return zero.borrowing(zero._engine, monitor.watch)("matched")


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Gets an entry when a GPU has been given back, which takes a moment."""
    left, decode = [], zero.decode

    def watched(*request: object) -> Iterator[zero.Step]:
        try:
            yield from decode(*request)
        finally:
            time.sleep(0.2)
            left.append(True)

    monkeypatch.setattr(zero, "decode", watched)
    return left


def test_its_yields_can_be_pickled_and_make_up_the_run(borrowed: zero.BorrowedGPU) -> None:
    sampling = SamplingParams(max_tokens=20, seed=3, temperature=0.8)
    models, kernels, *yields = zero.decode("matched", "A fox", CONFIG, sampling)
    assert models == "the models to be loaded on the GPU"
    assert kernels == "the first step on the GPU, for which kernels may have to be compiled"
    sent = [pickle.loads(pickle.dumps(events)) for events in yields]
    assert sent == yields
    assert all(isinstance(events[-1], StepTimed | Finished) for events in yields)
    run = Run(event for events in sent for event in events)
    assert run.reason == "length"
    assert Run(borrowed.stream("A fox", CONFIG, sampling, cancelled=threading.Event())).token_ids == run.token_ids


def test_a_borrowed_run_is_of_the_pair_that_was_asked_for(monitor: EngineMetrics) -> None:
    load, sampling = zero.borrowing(zero._engine, monitor.watch), SamplingParams(max_tokens=1)
    assert load("matched").default_num_blocks(CONFIG) == zero._engine("matched").default_num_blocks(CONFIG)
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
    said: list[str] = []
    begun, decode = threading.Event(), zero.decode

    def held(*request: object) -> Iterator[zero.Step]:
        begun.wait(10)
        said.append(run.status())
        for step in decode(*request):
            yield step
            if said[-1]:
                until(lambda: run.status() != said[-1])
                said.append(run.status())

    monkeypatch.setattr(zero, "decode", held)
    run = LiveRun(JobQueue(), lambda pair: borrowed, Settings(prompt="A fox", max_tokens=12))
    begun.set()
    reported = "".join(run.transcript(partial(lines, Reducer())))
    assert '"finished":{"reason":"length"' in reported
    assert said == [
        "Waiting for a GPU …",
        "Waiting for the models to be loaded on the GPU …",
        "Waiting for the first step on the GPU, for which kernels may have to be compiled …",
        "",
    ]


def test_stopping_ends_a_borrowed_run_after_the_current_step_and_the_server_counts_it(
    borrowed: zero.BorrowedGPU, left: list[bool], monitor: EngineMetrics
) -> None:
    cancelled, events = threading.Event(), []
    for event in borrowed.stream("A fox", CONFIG, SamplingParams(max_tokens=99, seed=1), cancelled=cancelled):
        events.append(event)
        if isinstance(event, StepTimed) and event.step == 3:
            cancelled.set()
    assert left == [True]
    run = Run(events)
    assert run.reason == "cancelled"
    assert sum(isinstance(event, StepTimed) for event in events) == 4
    page = TestClient(Starlette(routes=monitor.routes())).get("/metrics").text
    label = f'model_name="{EMBEDDED["matched"].label}"'
    assert f'vllm:request_success_total{{finished_reason="abort",{label}}} 1.0' in page
    assert f"vllm:generation_tokens_total{{{label}}} {len(run.token_ids)}.0" in page


@pytest.mark.parametrize("words", [0, 2], ids=["no GPU yet", "kernels are being compiled"])
def test_stopping_before_the_first_step_ends_it_at_once_and_the_gpu_is_given_back_when_it_can_be(
    borrowed: zero.BorrowedGPU, monkeypatch: pytest.MonkeyPatch, words: int
) -> None:
    asked, lent, left, decode = threading.Event(), threading.Event(), threading.Event(), zero.decode
    computed: list[object] = []

    def held(*request: object) -> Iterator[zero.Step]:
        steps = decode(*request)
        yield from itertools.islice(steps, words)
        asked.set()
        assert lent.wait(60)
        try:
            for step in steps:
                computed.append(step)
                yield step
        finally:
            left.set()

    monkeypatch.setattr(zero, "decode", held)
    queue, settings = JobQueue(), Settings(prompt="A fox", max_tokens=999)
    run = LiveRun(queue, lambda pair: borrowed, settings)
    assert asked.wait(10)
    after = LiveRun(queue, lambda pair: zero._engine("matched"), replace(settings, max_tokens=3))
    run.cancelled.set()
    assert run.done.wait(10), "it waited for a GPU that nobody wants any more"
    assert after.done.wait(20), "others waited for a GPU that they do not want"
    assert (run.events, run.problem, borrowed.wait_reason) == ([], "", "")
    lent.set()
    assert left.wait(10)
    assert len(computed) == 1, "steps for nobody"


def test_a_gpu_is_asked_for_in_the_visitors_name(borrowed: zero.BorrowedGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``spaces`` finds out who that is, and whose quota pays: from the request's context."""
    visitor, asked, decode = ContextVar("visitor", default="nobody"), [], zero.decode

    def named(*request: object) -> Iterator[zero.Step]:
        asked.append(visitor.get())
        yield from decode(*request)

    monkeypatch.setattr(zero, "decode", named)
    visitor.set("somebody")
    LiveRun(JobQueue(), lambda pair: borrowed, Settings(prompt="A fox", max_tokens=1)).done.wait(10)
    assert asked == ["somebody"]


def test_errors_are_reported_as_anywhere_else_when_the_gpu_is_given_back(
    borrowed: zero.BorrowedGPU, left: list[bool]
) -> None:
    with pytest.raises(PromptError, match="empty"):
        list(borrowed.stream("", CONFIG, SamplingParams(), cancelled=threading.Event()))
    assert left == [True]


def test_of_a_call_that_is_broken_off_it_is_said_what_to_do(
    borrowed: zero.BorrowedGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_off(*request: object) -> Iterator[zero.Step]:
        yield next(decode(*request))
        raise gr.Error("GPU task aborted", title="ZeroGPU worker error")  # by ``spaces``, when its time is over

    decode = zero.decode
    monkeypatch.setattr(zero, "decode", broken_off)
    with pytest.raises(LabError, match=r"^ZeroGPU worker error: GPU task aborted\. It may .* Run it again"):
        list(borrowed.stream("A fox", CONFIG, SamplingParams(), cancelled=threading.Event()))


BUILT_FOR_CUDA = """
import torch
torch._C._cuda_init, torch.version.cuda = print, "13.0"
torch.cuda._is_in_bad_fork = torch.cuda.is_initialized
"""
"""Run at Python's start: ``spaces`` finds what a CUDA build of torch has."""
GUARDED = (
    BUILT_FOR_CUDA
    + """
import sys
def guarded(name, real):
    def call(*values):
        assert "spaces" in sys.modules, f"torch.cuda.{name} was asked before spaces was there"
        return real(*values)
    return call
for name in ("is_available", "device_count", "init"):
    setattr(torch.cuda, name, guarded(name, getattr(torch.cuda, name)))
"""
)
"""Once such a build is asked for devices, no forked process can use one."""
BORROWS = (
    GUARDED
    + """
import threading
import app
import spaces.zero.torch
spaces.zero.torch.init = spaces.zero.torch.move = lambda *_, **__: None  # there is no GPU to move tensors to
from lab import EngineConfig, LabError, Run, SamplingParams
from lab.registry import Engines
from visualize.jobs import zerogpu as zero
from visualize.jobs.job_queue import JobQueue
from visualize.prometheus import EngineMetrics

queue, engines = JobQueue(), Engines(device="cpu")
pages = app.build(engines, engines, queue, borrowed=EngineMetrics(queue), reported={})
pages.launch(prevent_thread_lock=True, quiet=True)
borrowed = zero.borrowing(lambda pair: None, lambda model: lambda *event: None)("matched")
def events(prompt, cancelled):
    sampling = SamplingParams(max_tokens=8, seed=1)
    return borrowed.stream(prompt, EngineConfig(speculative="draft", paged=True), sampling, cancelled=cancelled)
for prompt in ("A fox", "", "A fox"):
    try:
        print("told:", Run(events(prompt, threading.Event())).text.strip())
    except LabError as error:
        print("told:", error)
stopped = threading.Event()
threading.Timer(0.3, stopped.set).start()
print("told:", list(events("A fox", stopped)), [thread.name for thread in threading.enumerate()])
for thread in threading.enumerate():
    if thread.name == "decode-lab-borrow":
        thread.join()
pages.close()
"""
)


def test_a_space_is_built_without_touching_the_gpu_lends_one_and_says_what_goes_wrong_in_its_words() -> None:
    """In a process that ``spaces`` forks: of an error that is raised there, it tells the class's name alone."""
    text = zero._engine("matched").generate("A fox", CONFIG, SamplingParams(max_tokens=8, seed=1)).text.strip()
    with lending("lends", "lends", "refuses", "waits") as lender:
        there = {**os.environ, **lender.variables, "GRADIO_ANALYTICS_ENABLED": "False"}
        done = subprocess.run(
            [sys.executable, "-c", BORROWS], cwd=ROOT, env=there, capture_output=True, text=True, timeout=300
        )
    reported = [line.removeprefix("told: ") for line in done.stdout.splitlines() if line.startswith("told: ")]
    assert reported[:2] == [text, "The prompt is empty. Enter some text for the model to continue."], done.stderr
    assert reported[2].startswith("ZeroGPU quota exceeded: ")
    assert zero.ABORTED not in reported[2]
    assert reported[3].startswith("[] ["), "events of a run that was stopped before it had a GPU"
    assert "decode-lab-borrow" in reported[3], "it waited until it had one"
    first, again = ["/schedule", "/allow", "/release"], ["/schedule", "/release"]
    assert lender.asked == ["/startup-report", *first, *again, "/schedule", *again], "the last GPU was not given back"


def test_what_is_compared_on_such_a_space_runs_on_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.models.devices.has_gpu", lambda: True)  # as ``spaces`` has torch say
    lanes = [runpy.run_path(f"{ROOT}/visualize/pages/compare/configurations.py")["LANES"]]
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    lanes.append(runpy.run_path(f"{ROOT}/visualize/pages/compare/configurations.py")["LANES"])
    assert ["no-graphs" in those for those in lanes] == [True, False]
    assert [those["compiled"][1].kernels for those in lanes] == ["auto", "reference"]


def test_what_such_a_space_cannot_compile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"torch_compile": "1", "kernels": "reference"}
    assert from_link(asked)[0].torch_compile
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    settings, notices = from_link(asked)
    assert not settings.torch_compile
    [notice] = notices
    assert "torch_compile was left out: it needs a GPU for longer" in notice


def test_the_time_estimate_grows_with_the_tokens() -> None:
    few, many = (zero.seconds("matched", "A fox", CONFIG, SamplingParams(max_tokens=most)) for most in (1, 1000))
    assert (few, many) == (45, 65)
