"""One run at a time for each visitor, compared with their previous one."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.trace.run import Run
from tests.coroutines import complete
from tests.visualize.scripted import ScriptedEngine
from tests.waiting import until
from visualize.jobs.job_queue import JobQueue
from visualize.jobs.live_run import LiveRun
from visualize.jobs.run_store import RUN, RunKind, RunStore
from visualize.jobs.visitor_sessions import OnePerSession, VisitorSessions
from visualize.run_settings import Settings


class Desk:
    """Visitors with scripted runs; ``runs`` are those that began."""

    def __init__(self, pause: float = 0.0, kind: RunKind = RUN) -> None:
        self.runs: list[LiveRun] = []
        self.compared: list[Any] = []
        self.store = RunStore(kind)
        self.visitors = VisitorSessions(self.store)
        self._engine, self._queue = ScriptedEngine(pause), JobQueue()

    def begin(self, visitor: str, **settings: Any) -> str | None:
        def make(before: Any) -> LiveRun:
            self.compared.append(before)
            self.runs.append(LiveRun(self._queue, lambda pair: self._engine, Settings(**settings), before))
            return self.runs[-1]

        return self.visitors.begin(visitor, make)

    def wait(self) -> None:
        """Wait until the last run is over and its channel closed."""
        until(lambda: self.runs[-1].channel.closed)


def test_a_run_is_compared_with_the_visitors_own_previous_one() -> None:
    desk = Desk()
    for visitor in ("ann", "ben", "ann"):
        desk.begin(visitor, max_tokens=3)
        desk.wait()
    first, second, third = desk.compared
    assert first is None
    assert second is None
    assert third.metrics.generated_tokens == 3


def test_a_visitor_has_one_run_at_a_time_without_holding_up_others() -> None:
    desk = Desk(0.01)
    assert desk.begin("ann", max_tokens=1000)
    assert desk.begin("ann", max_tokens=3) is None
    assert desk.begin("ben", max_tokens=1000)
    assert len(desk.runs) == 2
    desk.visitors.stop("ann")
    assert desk.begin("ann", max_tokens=3)  # a stopped run does not block the next
    assert desk.compared[-1] is None
    assert desk.runs[0].done.wait(10)
    assert not desk.runs[1].done.is_set()
    desk.visitors.leave("ben")
    assert desk.runs[1].done.wait(10)
    assert desk.runs[1].cancelled.is_set(), "it did not come to its own end"


def test_of_many_simultaneous_clicks_one_begins_a_run() -> None:
    class Slow:
        goes_on = True

        def __init__(self) -> None:
            self.cancelled = threading.Event()
            time.sleep(0.02)  # so that others arrive meanwhile

    each: OnePerSession[Slow] = OnePerSession()
    with ThreadPoolExecutor(8) as pool:
        began = [one for one in pool.map(lambda _: each.begin("ann", Slow), range(8)) if one]
    assert began == [each.last("ann")]
    assert each.under_way == 1


def test_a_visitors_runs_end_and_are_dropped_when_they_leave() -> None:
    desk = Desk(0.01)
    head = json.loads(desk.begin("ann", max_tokens=1000))
    assert head == {"run": desk.runs[0].id, "live": True}
    desk.visitors.leave("ann")
    desk.visitors.leave("nobody")
    assert desk.runs[0].done.wait(10)
    assert "no longer has this run" in desk.store.take_away([head["run"], "csv"])["problem"]


def test_with_too_many_visitors_the_first_idle_one_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    class Task:
        def __init__(self, goes_on: bool) -> None:
            self.goes_on, self.cancelled = goes_on, threading.Event()

    monkeypatch.setattr("visualize.jobs.visitor_sessions.MOST", 2)
    each: OnePerSession[Task] = OnePerSession()
    for visitor in ("ann", "ben", "ann", "cat", "dan"):
        each.begin(visitor, lambda visitor=visitor: Task(visitor == "cat"))
    each.begin("eva", lambda: Task(False))
    assert [bool(each.last(visitor)) for visitor in ("ann", "ben", "cat", "dan", "eva")] == [False, False, 1, 1, 1]
    each.begin("fay", lambda: Task(False))
    assert each.last("cat")
    assert not each.last("dan")


def test_a_run_dropped_from_the_shelf_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visualize.jobs.run_store.MOST_VISITORS", 2)
    desk = Desk()
    for visitor in ("ann", "ben", "cat"):
        desk.begin(visitor, max_tokens=3)
        desk.wait()
    gone, *others = map(weakref.ref, desk.runs)
    desk.runs.clear()
    gc.collect()
    assert gone() is None
    assert all(other() for other in others)


def test_a_file_does_not_replace_a_run_that_began_after_it_was_chosen(tmp_path: Path) -> None:
    lengths = iter((3, 1000, 0, 0))  # of runs that begin while the file is read; 0: none does

    def load(document: Any, name: str) -> Sequence[Any]:
        if tokens := next(lengths):
            desk.begin("ann", max_tokens=tokens)
        if tokens == 3:
            desk.wait()
        return RUN.load(document, name)

    def opened() -> dict[str, Any]:
        return json.loads(desk.visitors.reopen("ann", path).splitlines()[-1])

    desk, path = Desk(0.01, replace(RUN, load=load)), tmp_path / "run.json"
    desk.begin("ann", max_tokens=3)
    desk.wait()
    path.write_text(desk.store.take_away([desk.runs[0].id, "json"])["text"])
    for _ in range(3):  # the third time the run has begun before: while the file was on its way
        assert opened()["problem"].startswith("A run began meanwhile")
        assert desk.store.events(desk.runs[1].id)  # it is over, and still there
    assert desk.visitors.busy("ann")
    desk.visitors.stop("ann")
    assert "finished" in opened()


def hear(run: LiveRun) -> None:
    async def all_of_it() -> None:
        async for _ in run.channel.read():
            pass

    complete(all_of_it())


def test_a_run_without_listeners_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(0.01)
    desk.begin("ann", max_tokens=1000)
    desk.begin("ben", max_tokens=20)
    unheard, heard = desk.runs
    hearing = threading.Thread(target=hear, args=(heard,))
    hearing.start()
    until(lambda: heard.channel.readers)
    monkeypatch.setattr("visualize.jobs.live_run.ABSENT_S", 0.1)
    hearing.join(20)
    assert [Run(run.events).reason for run in (unheard, heard)] == ["cancelled", "length"]
