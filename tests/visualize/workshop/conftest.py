"""A workshop, queried over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from visualize import workshop as doors
from visualize.jobs.job_queue import JobQueue
from visualize.workshop import Workshop

KEY = "the presenter's"


class Room:
    """A workshop, queried over HTTP."""

    def __init__(self, host: str = "0.0.0.0") -> None:
        self.queue = JobQueue(together=True)
        self.workshop = Workshop(self.queue, host, KEY)
        self.client = TestClient(Starlette(routes=self.workshop.routes()))

    def ask(self, door: str, **question: Any) -> tuple[int, dict[str, Any]]:
        answer = self.client.post(f"/workshop/{door}", json=question)
        return answer.status_code, answer.json()

    def shown(self) -> dict[str, Any]:
        """The latest message to followers."""
        return json.loads(next(reversed(self.workshop.lead.channel._messages.values())))


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    monkeypatch.setattr(doors, "PAUSE", 0.0)
    room = Room()
    yield room
    room.queue.close(1)
