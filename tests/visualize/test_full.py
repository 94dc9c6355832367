"""A server that admits a limited number of visitors."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from unittest.mock import Mock

import pytest

from tests.visualize.scripted import ScriptedEngine
from tests.waiting import until
from visualize.jobs.job_queue import FullError, JobQueue
from visualize.jobs.live_run import LiveRun
from visualize.pages.compare.compare_job import Comparison
from visualize.pages.compare.configurations import CompareInputs
from visualize.reduce.frames import Reducer
from visualize.reduce.ndjson import lines
from visualize.run_settings import Settings


def load(pair: str) -> ScriptedEngine:
    return ScriptedEngine(0.01)


def test_of_one_visitor_it_is_said_in_the_singular() -> None:
    queue, told = JobQueue(most=1), "1 visitor has a run under way or in line"
    with queue.visit(Mock()), pytest.raises(FullError, match=told), queue.visit(Mock()):
        pass


def test_one_visitor_too_many_is_refused_without_affecting_the_others() -> None:
    queue = JobQueue(most=2)
    runs = [LiveRun(queue, load, Settings(max_tokens=1000)) for _ in range(2)]
    until(lambda: queue.inside == 2)
    refused = "".join(LiveRun(queue, load, Settings()).transcript(partial(lines, Reducer())))
    assert "The lab is full: 2 visitors have a run under way" in json.loads(refused.splitlines()[-1])["problem"]
    *_, record = Comparison(queue, load, CompareInputs()).records()
    assert record["problem"].startswith("The lab is full")
    assert not any(run.done.is_set() for run in runs)
    for run in runs:
        run.cancelled.set()
    assert all(run.done.wait(10) for run in runs)
    *_, record = Comparison(queue, load, CompareInputs(lanes=("cache", "paged"), max_tokens=3, repeats=1)).records()
    assert "problem" not in record


def test_visitors_inside_never_exceed_the_limit() -> None:
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
            except FullError:
                refused.append(1)

    threads = [threading.Thread(target=visit) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) <= 5
    assert refused
    with queue.visit(object()):  # every place is free again
        pass


def test_an_error_inside_frees_the_place() -> None:
    queue = JobQueue(most=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), queue.visit(object()):
            raise ZeroDivisionError
    with queue.visit(object()), pytest.raises(FullError), queue.visit(object()):
        pass
