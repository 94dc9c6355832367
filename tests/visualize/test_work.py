"""Work for visitors, in threads of its own: how it begins, ends and fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace

import pytest

from tests.waiting import until
from visualize.jobs import job_queue as work
from visualize.jobs.job_queue import CLOSED, JobQueue, QueuedJob


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


def ends(wait: Callable[[], object]) -> bool:
    """Whether it comes to an end in time."""
    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(10)
    return not waiting.is_alive()


def test_a_line_is_closed_as_soon_as_all_work_in_it_has_ended() -> None:
    queue = JobQueue()
    waiting = [Doing(lambda it: it.cancelled.wait(30), queue) for _ in range(2)]
    until(lambda: queue.inside == 2)
    assert ends(lambda: queue.close(60))
    assert all(one.done.wait(10) for one in waiting)


def test_in_a_line_that_is_closed_nothing_begins() -> None:
    queue, begun = JobQueue(), []
    assert queue.close(0)
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
    monkeypatch.setattr(work, "TICK", 60.0)
    queue = JobQueue()
    with queue.turn("first", threading.Event()):
        second = threading.Thread(target=lambda: queue.turn("second", threading.Event()).__enter__(), daemon=True)
        second.start()
        until(lambda: queue.ahead("second"))
    second.join(10)
    assert not second.is_alive()


def test_what_turns_were_waited_for_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((0.0, 2.0, 10.0, 13.0))
    monkeypatch.setattr(work, "time", SimpleNamespace(monotonic=now.__next__))
    queue = JobQueue()
    for who in ("ann", "ben"):
        with queue.turn(who, threading.Event()):
            pass
    assert (queue.turns, queue.waited) == (2, 5.0)


def test_work_knows_whose_request_it_is_for() -> None:
    """A Space that lends GPUs asks."""
    visitor, found = ContextVar("visitor", default="nobody"), []
    visitor.set("ann")
    assert Doing(lambda it: found.append(visitor.get())).done.wait(10)
    assert found == ["ann"]


def test_that_models_are_loaded_is_told_before_there_is_anything_to_count() -> None:
    let = threading.Event()
    loading = Doing(lambda it: it.engine("matched"), load=lambda pair: let.wait(30))
    until(loading.status)
    assert loading.status() == "Loading the models …"
    let.set()
    assert loading.done.wait(10)


def test_work_that_hangs_does_not_keep_the_process_from_ending() -> None:
    found: list[bool] = []
    assert Doing(lambda it: found.append(threading.current_thread().daemon)).done.wait(10)
    assert found == [True]


def test_a_defect_is_told_in_a_sentence_and_logged_whole(caplog: pytest.LogCaptureFixture) -> None:
    broken = Doing(lambda it: 1 // 0)
    with caplog.at_level(logging.ERROR):
        assert broken.done.wait(10)
    assert broken.problem == "This failed (ZeroDivisionError: integer division or modulo by zero)."
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]
    assert not broken.goes_on


def test_work_that_is_stopped_goes_on_no_more_though_it_has_not_ended() -> None:
    let = threading.Event()
    slow = Doing(lambda it: let.wait(30))
    assert slow.goes_on
    slow.cancelled.set()
    assert not slow.goes_on
    let.set()
    assert slow.done.wait(10)
