"""Events have the time since the first one, and any thread may take them."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

from lab.trace import recorder as recorder_module
from lab.trace.events import Finished
from lab.trace.recorder import Recorder


def test_times_count_from_the_first_event_and_a_watcher_has_the_clocks_own(monkeypatch):
    clock = iter([100.0, 100.25, 103.0])
    monkeypatch.setattr(recorder_module, "time", SimpleNamespace(perf_counter=clock.__next__))
    watched = []
    recorder = Recorder(7, lambda *told: watched.append(told))
    assert not recorder.began
    for text in "abc":
        recorder.emit(Finished, reason="length", text=text, message="")
    assert recorder.pending
    events = list(recorder.drain())
    assert [(event.t_ms, event.text) for event in events] == [(0, "a"), (250, "b"), (3000, "c")]
    assert watched == [(7, seconds, event) for seconds, event in zip((100.0, 100.25, 103.0), events, strict=True)]
    assert recorder.began
    assert not recorder.pending


def test_draining_events_tolerates_another_thread_that_takes_them():
    class Contested(deque):
        def __len__(self):
            there = super().__len__()
            self.clear()
            return there

    recorder = Recorder()
    recorder.emit(Finished, reason="length", text="", message="")
    (event,) = recorder._pending
    recorder._pending = Contested([event])
    assert list(recorder.drain()) in ([event], [])
