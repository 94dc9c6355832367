"""A run in its thread, and the transcript a page gets of it."""

from __future__ import annotations

import itertools
import json
import threading
import time
from typing import Any

import pytest

from lab.config import PromptError
from lab.trace.events import Finished
from tests.visualize.scripted import ScriptedEngine
from visualize.frames import Reducer
from visualize.live import Line, LiveRun, transcript
from visualize.picture import Picture
from visualize.settings import Settings


def start(engine: ScriptedEngine, line: Line | None = None, **settings: Any) -> LiveRun:
    return LiveRun(line or Line(), lambda pair: engine, Settings(**settings))


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_transcript_only_grows_and_ends_with_the_whole_run() -> None:
    texts = list(transcript(start(ScriptedEngine(0.01), max_tokens=60), Reducer()))
    assert len(texts) > 3
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    shown = Picture()
    for record in records(texts[-1]):
        if "seq" in record:
            shown.apply(record)
    assert len(shown.tokens) == 60
    assert shown.finished == {"reason": "length", "message": ""}


def test_a_transcript_holds_no_tag() -> None:
    *_, text = transcript(start(ScriptedEngine(words=["<script>x</script>"]), max_tokens=3), Reducer())
    assert "<" not in text
    assert records(text)[3]["tokens"][0]["text"] == "<script>x</script>"


def test_a_run_can_be_stopped() -> None:
    run = start(ScriptedEngine(0.02), max_tokens=1000)
    stream = transcript(run, Reducer())
    for text in stream:
        if '"tokens"' in text:
            break
    began = time.perf_counter()
    run.cancelled.set()
    *_, text = stream
    assert time.perf_counter() - began < 1
    assert isinstance(run.events[-1], Finished)
    assert run.events[-1].reason == "cancelled"
    assert records(text)[-1]["captions"]["blocks"] == "0 of 128 live"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"prompt": ""}, "The prompt is empty"),
        ({"cache": False, "kv_format": "int8", "paged": False}, "Turn the cache on"),
    ],
)
def test_a_mistake_is_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    *_, text = transcript(start(ScriptedEngine(), **settings), Reducer())
    assert sentence in records(text)[-1]["problem"]


def test_a_load_that_fails_is_a_sentence() -> None:
    def fail(pair: str) -> ScriptedEngine:
        raise PromptError("No weights here.")

    *_, text = transcript(LiveRun(Line(), fail, Settings()), Reducer())
    assert records(text)[-1]["problem"] == "No weights here."


def test_runs_take_turns_and_say_so() -> None:
    line, engine = Line(), ScriptedEngine(0.02)
    first = start(engine, line, max_tokens=30)
    while not first.events:
        time.sleep(0.005)
    second = start(engine, line, max_tokens=3)
    *_, text = transcript(second, Reducer())
    assert {"status": "Waiting: 1 run is before yours."} in records(text)
    assert first.done.is_set()


def test_whoever_stops_waiting_lets_the_next_one_pass() -> None:
    line, engine = Line(), ScriptedEngine(0.02)
    first, second = start(engine, line, max_tokens=60), start(engine, line)
    time.sleep(0.05)
    second.cancelled.set()
    assert second.done.wait(1)
    assert not second.events
    assert not first.done.is_set()
    *_, text = transcript(second, Reducer())
    assert records(text)[-1] == {"problem": "Stopped before it began."}
    first.cancelled.set()
    assert first.done.wait(1)


def test_the_thread_ends_with_the_run() -> None:
    run = start(ScriptedEngine(), max_tokens=3)
    assert run.done.wait(2)
    time.sleep(0.05)
    assert not [thread for thread in threading.enumerate() if thread.name == "decode-lab-run" and thread.is_alive()]
