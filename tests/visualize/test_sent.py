"""What visitors upload is bounded, whether or not anybody opens it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.coroutines import complete
from visualize.server import sent
from visualize.server.guard import Guard
from visualize.server.posted import Refusal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(sent.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(sent, "MOST_STORED", 100)
    monkeypatch.setattr(sent, "A_FILE", 10)
    return clock


def test_files_are_taken_while_those_on_disk_leave_room(clock: SimpleNamespace) -> None:
    stored = sent.Stored()
    stored.admit(60)
    clock.now += 100
    stored.admit(40)
    with pytest.raises(Refusal):
        stored.admit(1)
    clock.now += sent.CHECKED_S + sent.STORED_S - 50  # the first is gone by now, the second not yet
    stored.admit(50)
    stored.admit(1)  # which takes as much room as the smallest
    with pytest.raises(Refusal):
        stored.admit(1)


def test_a_file_for_which_there_is_no_room_is_refused_before_it_is_stored(clock: SimpleNamespace) -> None:
    passed_on: list[str] = []
    answers: list[Any] = []

    async def within(scope: Any, receive: Any, send: Any) -> None:
        passed_on.append(scope["path"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x" * 60, "more_body": False}

    async def send(message: Any) -> None:
        answers.append(message)

    pages = SimpleNamespace(config={"page": {}})
    scope = {"type": "http", "method": "POST", "path": "/gradio_api/upload", "query_string": b"", "headers": []}
    scope["app"] = SimpleNamespace(get_blocks=lambda: pages)
    guard = Guard(within, (), None)
    for _ in range(2):
        complete(guard(scope, receive, send))
    assert len(passed_on) == 1
    assert [answer["status"] for answer in answers if "status" in answer] == [507]
    assert b"has no room for more. Try again later." in answers[-1]["body"]
