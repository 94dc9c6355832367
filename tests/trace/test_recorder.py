"""Events have the time since the first one, and any thread may take them."""

from __future__ import annotations

from threading import Thread
from types import SimpleNamespace

from lab.trace import recorder as recorder_module
from lab.trace.events import Finished
from lab.trace.recorder import Recorder


def test_times_count_from_the_first_event_and_a_watcher_has_the_clocks_own(monkeypatch):
    clock = iter([100.0, 100.25, 103.0])
    monkeypatch.setattr(recorder_module, "time", SimpleNamespace(perf_counter=clock.__next__))
    watched = []
    recorder = Recorder(7, lambda *reported: watched.append(reported))
    assert not recorder.began
    for text in "abc":
        recorder.emit(Finished, reason="length", text=text, message="")
    assert recorder.pending
    events = list(recorder.drain())
    assert [(event.t_ms, event.text) for event in events] == [(0, "a"), (250, "b"), (3000, "c")]
    assert watched == [(7, seconds, event) for seconds, event in zip((100.0, 100.25, 103.0), events, strict=True)]
    assert recorder.began
    assert not recorder.pending


def test_each_event_goes_to_one_of_several_threads_that_drain():
    recorder, taken = Recorder(), []
    for number in range(2000):
        recorder.emit(Finished, reason="length", text=str(number), message="")
    threads = [Thread(target=lambda: taken.extend(event.text for event in recorder.drain())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, taken)) == list(range(2000))
