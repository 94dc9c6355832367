"""Reducers in a process of their own: what they tell is what they would tell here, whatever becomes of the process."""

from __future__ import annotations

import os
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
from visualize.run.frames import Reducer
from visualize.run.transcript import lines
from visualize.server import apart
from visualize.server.apart import Apart, RefusedError

ROOT = Path(__file__).parents[2]


def portions(events: list[Event]) -> Iterator[list[Event]]:
    """All of them, 7 at a time."""
    for begin in range(0, len(events), 7):
        yield events[begin : begin + 7]


def here(events: list[Event]) -> list[str]:
    return lines(Reducer(), events)


def told(reducer: Apart, events: list[Event], between: Callable[[int], None] = lambda fed: None) -> list[str]:
    new = []
    for fed, some in enumerate(portions(events)):
        between(fed)
        new += reducer.feed(some)
    return new


def pid() -> int:
    return Apart.start()._popen.pid


def kill() -> None:
    """End the process as a system does that is out of memory."""
    process = Apart.start()
    os.kill(pid(), signal.SIGKILL)
    process._popen.wait()


def test_what_is_told_apart_is_what_is_told_here(events: list[Event]) -> None:
    reducer = Apart(Reducer())
    assert told(reducer, events) == here(events)
    alone = Reducer()
    alone.feed(events)
    assert reducer.after() == alone.after()


def test_it_is_told_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reducer, "feed", lambda *_: pytest.fail("reduced beside the engine"))
    assert len(told(Apart(Reducer()), script(CONFIGS["plain"]))) > 20


@pytest.mark.parametrize("last", [0, 3])
def test_a_process_that_ends_is_not_missed(last: int) -> None:
    """Nothing is lost and nothing is told twice. The next run has a process again."""
    events, before = script(CONFIGS["all"]), pid()
    reducer = Apart(Reducer())
    assert told(reducer, events, lambda fed: kill() if fed == last else None) == here(events)
    alone = Reducer()
    alone.feed(events)
    assert reducer.after() == alone.after()
    assert pid() != before


def test_a_process_that_ended_before_the_end_was_asked_is_not_missed() -> None:
    events = script(CONFIGS["plain"])
    reducer, alone = Apart(Reducer()), Reducer()
    told(reducer, events)
    kill()
    alone.feed(events)
    assert reducer.after() == alone.after()


def test_where_no_process_can_begin_it_is_told_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("no more processes")

    monkeypatch.setattr(Apart, "_process", None)
    monkeypatch.setattr(apart.subprocess, "Popen", refuse)
    events = script(CONFIGS["speculative"])
    assert told(Apart(Reducer()), events) == here(events)


def test_many_runs_at_once_are_not_mixed_up() -> None:
    scripts = [script(config, max_tokens=length) for config in CONFIGS.values() for length in (9, 31)]
    found: dict[int, list[str]] = {}

    def tell(number: int) -> None:
        found[number] = told(Apart(Reducer()), scripts[number])

    threads = [threading.Thread(target=tell, args=(number,)) for number in range(len(scripts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(len(scripts))] == [here(events) for events in scripts]


def test_what_a_reducer_refuses_is_said_and_ends_no_other() -> None:
    run, *rest = script(CONFIGS["plain"])
    assert isinstance(run, RunStarted)
    other = Apart(Reducer())
    with pytest.raises(RefusedError, match="AttributeError"):
        Apart(Reducer()).feed(rest)
    assert told(other, [run, *rest]) == here([run, *rest])


def test_it_ends_with_whoever_began_it() -> None:
    code = (
        "import time; from visualize.server.apart import Apart; print(Apart.start()._popen.pid, flush=True); "
        "time.sleep(60)"
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
            return  # over, and nobody has asked for how it ended
        time.sleep(0.05)
    pytest.fail("the process is still there")


def test_it_knows_neither_torch_nor_gradio() -> None:
    code = (
        "import sys, visualize.server.apart, visualize.run.frames, visualize.batch.frames;"
        "print([name for name in ('torch', 'transformers', 'gradio', 'numpy') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
