"""Taking turns when runs may go together: measurements run alone, and everyone gets a turn."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from visualize.jobs.job_queue import JobQueue


@settings(max_examples=40, deadline=None)
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
    give_up = threading.Timer(5, stop.set)
    give_up.start()
    with queue.turn("a run", stop, alone=False), queue.turn("another", stop, alone=False):
        give_up.cancel()
        assert not stop.is_set()
        assert queue.ahead("another") == 0
        measuring = threading.Thread(target=lambda: queue.turn("a measurement", stop).__enter__())
        measuring.start()
        while "a measurement" not in queue._waiting:
            time.sleep(0.001)
        assert queue.ahead("a measurement") == 2
        late = threading.Thread(target=lambda: queue.turn("late", stop, alone=False).__enter__())
        late.start()
        while "late" not in queue._waiting:
            time.sleep(0.001)
        assert queue.ahead("late") == 3, "otherwise a measurement would never get its turn"
        stop.set()
        measuring.join(2)
        late.join(2)


def test_a_turn_within_a_turn_is_refused() -> None:
    """It would wait for itself, or end the turn that it is in."""
    queue, stop = JobQueue(), threading.Event()
    with queue.turn("a run", stop):
        with pytest.raises(AssertionError, match="a turn within a turn"), queue.turn("a run", stop):
            pass
        assert "a run" in queue._waiting
    assert not queue._waiting
