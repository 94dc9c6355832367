"""Reducers in a separate process give the same output as in this one, whatever happens to the process."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.trace.events import Event, RunStarted
from tests.visualize.conftest import CONFIGS, script
from visualize.jobs import reducer_process as apart
from visualize.jobs.reducer_process import ReducerClient, ReducerError
from visualize.reduce.frames import Reducer, lines

ROOT = Path(__file__).parents[2]


def portions(events: list[Event]) -> Iterator[list[Event]]:
    """The events, 7 at a time."""
    for begin in range(0, len(events), 7):
        yield events[begin : begin + 7]


def here(events: list[Event]) -> list[str]:
    return lines(Reducer(), events)


def said(reducer: ReducerClient, events: list[Event], between: Callable[[int], None] = lambda fed: None) -> list[str]:
    new = []
    for fed, some in enumerate(portions(events)):
        between(fed)
        new += reducer.feed(some)
    return new


def pid() -> int:
    return ReducerClient.start()._popen.pid


def kill() -> None:
    """End the process as the out-of-memory killer would."""
    process = ReducerClient.start()
    os.kill(pid(), signal.SIGKILL)
    process._popen.wait()


def test_a_separate_process_gives_the_same_output_as_this_one(
    events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    reducer, alone, expected = ReducerClient(Reducer()), Reducer(), here(events)
    alone.feed(events)
    monkeypatch.setattr(Reducer, "feed", lambda *_: pytest.fail("reduced beside the engine"))
    assert said(reducer, events) == expected
    assert reducer.after() == alone.after()


def test_a_killed_process_is_replaced_without_losing_anything() -> None:
    """Nothing is lost or repeated, and the next run has a process again."""
    events, before = script(CONFIGS["all"]), pid()
    reducer = ReducerClient(Reducer())
    assert said(reducer, events, lambda fed: kill() if fed == 3 else None) == here(events)
    alone = Reducer()
    alone.feed(events)
    assert reducer.after() == alone.after()
    assert pid() != before


def test_every_run_of_a_killed_process_is_continued() -> None:
    """What was sent to it and not taken is not left to fail when it is collected (Python 3.13 reports that)."""
    events = script(CONFIGS["plain"])
    runs = [ReducerClient(Reducer()) for _ in range(2)]
    for run in runs:
        run.feed(events[:3])
    sent = ReducerClient.start()._popen.stdin
    kill()
    for run in runs:
        run.feed(events[3:])
        alone = Reducer()
        alone.feed(events)
        assert run.after() == alone.after()
    assert sent.closed


def test_without_a_process_events_are_reduced_in_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("no more processes")

    monkeypatch.setattr(ReducerClient, "_process", None)
    monkeypatch.setattr(apart.subprocess, "Popen", refuse)
    events = script(CONFIGS["speculative"])
    assert said(ReducerClient(Reducer()), events) == here(events)


def test_concurrent_runs_are_not_mixed_up() -> None:
    scripts = [script(config, max_tokens=length) for config in CONFIGS.values() for length in (9, 31)]
    found: dict[int, list[str]] = {}

    def tell(number: int) -> None:
        found[number] = said(ReducerClient(Reducer()), scripts[number])

    threads = [threading.Thread(target=tell, args=(number,)) for number in range(len(scripts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(len(scripts))] == [here(events) for events in scripts]


def test_a_reducers_error_is_reported_and_ends_no_other_run() -> None:
    run, *rest = script(CONFIGS["plain"])
    assert isinstance(run, RunStarted)
    other = ReducerClient(Reducer())
    with pytest.raises(ReducerError, match="AttributeError"):
        ReducerClient(Reducer()).feed(rest)
    assert said(other, [run, *rest]) == here([run, *rest])


def test_nothing_is_kept_of_a_run_that_is_over() -> None:
    """One process serves all visitors' runs for as long as the server runs."""
    asked = [(7, "take", Reducer()), (7, "feed", script(CONFIGS["plain"])), (7, "after", None), (7, "after", None)]
    requests, answers = io.BytesIO(b"".join(map(pickle.dumps, asked))), io.BytesIO()
    apart.serve(requests, answers)
    answers.seek(0)
    taken, fed, after, again = (pickle.load(answers) for _ in asked)
    assert taken is None
    assert fed
    assert after.metrics
    assert isinstance(again, ReducerError)


def test_the_process_ends_with_its_parent() -> None:
    code = (
        "import time; from visualize.jobs.reducer_process import ReducerClient;"
        "print(ReducerClient.start()._popen.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        begun = int(parent.stdout.readline())
        os.kill(begun, 0)
        parent.kill()
    for _ in range(600):
        try:
            os.kill(begun, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{begun}/stat").exists() and Path(f"/proc/{begun}/stat").read_text().split()[2] == "Z":
            return  # a zombie: it has ended, but has not been reaped
        time.sleep(0.05)
    pytest.fail("the process is still there")


def test_the_process_imports_neither_torch_nor_gradio() -> None:
    code = (
        "import sys, visualize.jobs.reducer_process, visualize.reduce.frames, visualize.pages.pool.pool_frames;"
        "print([name for name in ('torch', 'transformers', 'gradio', 'numpy') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
