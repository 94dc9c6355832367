"""Work for visitors, in threads of its own: whose turn it is, how it begins, ends and fails, and how many may come."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.visualize.scripted import ScriptedEngine
from tests.waiting import until
from visualize.jobs import job_queue
from visualize.jobs.job_queue import CLOSED, FullError, JobQueue, QueuedJob
from visualize.jobs.live_run import LiveRun
from visualize.pages.compare.compare_job import Comparison
from visualize.pages.compare.configurations import CompareInputs
from visualize.reduce.frames import Reducer, lines
from visualize.run_settings import Settings


class Doing(QueuedJob):
    """Work that a test says."""

    def __init__(
        self,
        does: Callable[[Doing], object],
        queue: JobQueue | None = None,
        load: Callable[[str], object] = lambda pair: None,
    ) -> None:
        self._does = does
        super().__init__(queue or JobQueue(), load)

    def _work(self) -> None:
        self._does(self)


def test_a_line_is_closed_as_soon_as_all_work_in_it_has_ended_and_nothing_begins_after() -> None:
    queue, begun = JobQueue(), []
    waiting = [Doing(lambda it: it.cancelled.wait(30), queue) for _ in range(2)]
    until(lambda: queue.inside == 2)
    assert queue.close(20)
    assert all(one.done.wait(10) for one in waiting)
    late = Doing(begun.append, queue)
    assert late.done.wait(10)
    assert (late.problem, begun) == (CLOSED, [])


def test_a_line_that_cannot_be_closed_in_time_says_so() -> None:
    queue, let = JobQueue(), threading.Event()
    busy = Doing(lambda it: let.wait(30), queue)
    until(lambda: queue.inside)
    assert not queue.close(0)
    let.set()
    assert busy.done.wait(10)
    assert queue.close(0)


def test_a_turn_begins_as_soon_as_the_one_before_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queue, "TICK", 60.0)
    queue = JobQueue()
    with queue.turn("first", threading.Event()):
        second = threading.Thread(target=lambda: queue.turn("second", threading.Event()).__enter__(), daemon=True)
        second.start()
        until(lambda: queue.ahead("second"))
    second.join(10)
    assert not second.is_alive()


def test_what_turns_were_waited_for_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((0.0, 2.0, 10.0, 13.0))
    monkeypatch.setattr(job_queue, "time", SimpleNamespace(monotonic=now.__next__))
    queue = JobQueue()
    for who in ("ann", "ben"):
        with queue.turn(who, threading.Event()):
            pass
    assert (queue.turns, queue.waited) == (2, 5.0)


def test_work_knows_whose_request_it_is_for_and_does_not_keep_the_process_from_ending() -> None:
    visitor, found = ContextVar("visitor", default="nobody"), []
    visitor.set("ann")  # a Space that lends GPUs asks
    assert Doing(lambda it: found.extend((visitor.get(), threading.current_thread().daemon))).done.wait(10)
    assert found == ["ann", True]


def test_that_models_are_loaded_is_reported_before_there_is_anything_to_count() -> None:
    let = threading.Event()
    loading = Doing(lambda it: it.engine("matched"), load=lambda pair: let.wait(30))
    until(loading.status)
    assert loading.status() == "Loading the models …"
    assert loading.goes_on
    loading.cancelled.set()
    assert not loading.goes_on, "though it has not ended"
    let.set()
    assert loading.done.wait(10)


def test_a_defect_is_reported_in_a_sentence_and_logged_whole(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        broken = Doing(lambda it: 1 // 0)
        assert broken.done.wait(10)
    assert broken.problem == "This failed (ZeroDivisionError: integer division or modulo by zero)."
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]


def test_one_visitor_too_many_is_refused_without_affecting_the_others() -> None:
    def load(pair: str) -> ScriptedEngine:
        return ScriptedEngine(0.01)

    queue = JobQueue(most=2)
    runs = [LiveRun(queue, load, Settings(max_tokens=1000)) for _ in range(2)]
    until(lambda: queue.inside == 2)
    refused = "".join(LiveRun(queue, load, Settings()).transcript(partial(lines, Reducer())))
    assert "The lab is full: 2 visitors have a run in progress" in json.loads(refused.splitlines()[-1])["problem"]
    *_, record = Comparison(queue, load, CompareInputs()).records()
    assert record["problem"].startswith("The lab is full")
    assert not any(run.done.is_set() for run in runs)
    for run in runs:
        run.cancelled.set()
    assert all(run.done.wait(10) for run in runs)
    *_, record = Comparison(queue, load, CompareInputs(lanes=("cache", "paged"), max_tokens=3, repeats=1)).records()
    assert "problem" not in record


def test_visitors_inside_never_exceed_the_limit_and_an_error_inside_frees_the_place() -> None:
    queue, gate, inside, most, refused = JobQueue(most=5), threading.Barrier(20), [], [], []

    def visit() -> None:
        gate.wait()
        for _ in range(20):
            try:
                with queue.visit(object()):
                    inside.append(1)
                    most.append(len(inside))
                    time.sleep(0.0001)
                    inside.pop()
                    raise ZeroDivisionError
            except FullError:
                refused.append(1)
            except ZeroDivisionError:
                pass

    threads = [threading.Thread(target=visit) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) <= 5
    assert refused
    with queue.visit(object()):  # every place is free again
        assert queue.inside == 1


@settings(max_examples=40)
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.booleans())
def test_exclusive_turns_run_alone_and_the_others_together(alone: list[bool], together: bool) -> None:
    queue, inside, wrong, began = JobQueue(together=together), [], [], []
    lock = threading.Lock()

    def take(number: int) -> None:
        with queue.turn(number, threading.Event(), alone=alone[number]):
            with lock:
                inside.append(number)
                began.append(number)
                company = [other for other in inside if other != number]
                if company and (not together or alone[number] or any(alone[other] for other in company)):
                    wrong.append((number, company))
            time.sleep(0.001)
            with lock:
                inside.remove(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(len(alone))]
    for number, thread in enumerate(threads):
        thread.start()
        while number not in queue._waiting and number not in began:
            time.sleep(0)
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert not wrong
    places = {number: began.index(number) for number in range(len(alone))}
    for number, must in enumerate(alone):
        if must:  # those that came earlier began earlier, and those that came later began later
            assert all(places[other] < places[number] for other in range(number))
            assert all(places[other] > places[number] for other in range(number + 1, len(alone)))


def test_workshop_runs_wait_for_measurements_but_not_for_each_other() -> None:
    queue, stop = JobQueue(together=True), threading.Event()
    late = []
    with queue.turn("a run", stop, alone=False), queue.turn("another", stop, alone=False):
        assert queue.ahead("another") == 0
        for name, alone, ahead in (("a measurement", True, 2), ("late", False, 3)):
            enter = queue.turn(name, stop, alone=alone).__enter__
            late.append(threading.Thread(target=enter, daemon=True))
            late[-1].start()
            until(lambda name=name: queue.ahead(name))
            assert queue.ahead(name) == ahead, "otherwise a measurement would never get its turn"
        stop.set()
        for thread in late:
            thread.join(5)
            assert not thread.is_alive()


def test_a_turn_within_a_turn_is_refused() -> None:
    """It would wait for itself, or end the turn that it is in."""
    queue, stop = JobQueue(), threading.Event()
    with queue.turn("a run", stop):
        with pytest.raises(AssertionError, match="a turn within a turn"), queue.turn("a run", stop):
            pass
        assert queue.turns == 1
