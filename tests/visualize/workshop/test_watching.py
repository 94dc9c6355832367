"""What those who watch a room are told."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from lab.config import EngineConfig
from lab.trace.events import Committed, Event, Finished, RunStarted
from tests.coroutines import complete
from tests.tiny_models import engine as tiny_engine
from tests.visualize.conftest import script
from tests.visualize.workshop.conftest import KEY, Room
from tests.waiting import until
from visualize.jobs.job_queue import TICK
from visualize.jobs.live_run import LiveRun
from visualize.pages.workshop.shared_pools import SharedPools
from visualize.run_settings import Settings
from visualize.workshop import Workshop


def test_the_room_is_updated_only_while_someone_is_watching(room: Room) -> None:
    engine = tiny_engine(on_event=room.workshop.room.watch("tiny"))
    channel = room.workshop.room.channel
    settings_of_run = Settings(max_tokens=8, speculative="off", prompt="A fox", temperature=0.0)
    first = LiveRun(room.queue, lambda pair: engine, settings_of_run)
    assert first.done.wait(20)
    time.sleep(0.3)
    assert not channel._messages, "nobody is watching"

    runs: list[LiveRun] = []

    async def look() -> list[dict[str, Any]]:
        messages = []
        async for _, message in channel.read():
            messages.append(json.loads(message))
            if len(messages) == 1:
                runs.extend(LiveRun(room.queue, lambda pair: engine, settings_of_run) for _ in range(3))
            if messages[-1]["done"] == 4 and any(message["speed"] for message in messages):
                return messages
        return messages

    messages = complete(asyncio.wait_for(look(), 30))
    assert messages[0]["done"] == 1, "a newcomer gets the state at once"
    assert messages[0]["pool"]["name"].startswith("tiny, KV dtype Auto")
    last = messages[-1]
    assert (last["running"], last["waiting"], last["done"]) == (0, 0, 4)
    assert set(last["pool"]["blocks"]) >= {"state", "owners", "fill", "mark"}
    assert max(message["speed"] for message in messages) <= 4 * 8
    assert "fox" not in str(messages)


def test_a_room_in_which_nothing_happens_is_reported_once_and_again_when_someone_follows(room: Room) -> None:
    async def look() -> list[int | None]:
        async with aclosing(room.workshop.room.channel.read(quiet_s=3 * TICK)) as messages:
            followers = [message and json.loads(message)["followers"] for message in [(await anext(messages))[1]]]
            assert not (await anext(messages))[1]
            following = asyncio.ensure_future(anext(aiter(room.workshop.lead.channel.read(1))))
            followers.append(json.loads((await anext(messages))[1])["followers"])
            following.cancel()
        return followers

    assert complete(asyncio.wait_for(look(), 10)) == [0, 1]


def test_who_comes_after_a_while_without_watchers_is_reported_what_has_happened_meanwhile(room: Room) -> None:
    reported = room.workshop.room.channel

    async def done(runs: int) -> None:
        """Watch until so many runs are done, and leave."""
        async with aclosing(reported.read()) as messages:
            async for _, message in messages:
                if json.loads(message)["done"] == runs:
                    return

    complete(asyncio.wait_for(done(0), 10))
    take = room.workshop.room.watch("tiny")
    for event in script(EngineConfig(), max_tokens=1):
        if isinstance(event, RunStarted | Finished):  # and no token, which would be in the charts for a minute
            take(0, 0.0, event)
    until(lambda: not room.workshop.room._heard)
    complete(asyncio.wait_for(done(1), 10))


def test_the_rooms_speed_is_that_of_all_tokens_in_the_last_second(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    room.queue.close(0)
    until(lambda: room.workshop.room.channel.closed)  # its own thread has ended
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    monkeypatch.setattr("visualize.pages.workshop.feed.time", clock)
    watched, speeds = Workshop(room.queue, "0.0.0.0", KEY).room, []
    take = watched.watch("tiny")
    some = {"t_ms": 0.0, "step": 0, "origins": (), "pieces": (), "probabilities": (), "text": ""}
    for seconds, tokens in ((0.5, 3), (0.5, 2), (1.0, 0), (2.0, 5)):
        now[0] += seconds
        take(0, now[0], Committed(token_ids=(7,) * tokens, **some))
        watched._listen()
        speeds.append(watched._record()["speed"])
    assert speeds == [0, 5, 0, 2]


def test_the_room_starts_over_after_what_it_cannot_take(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    take, sound = SharedPools.take, [False]

    def once(pools: SharedPools, model: str, owner: int, event: Event) -> None:
        if isinstance(event, Finished) and not sound.pop():
            raise ValueError("a defect")
        take(pools, model, owner, event)

    monkeypatch.setattr(SharedPools, "take", once)
    engine = tiny_engine(on_event=room.workshop.room.watch("tiny"))
    how = Settings(max_tokens=3, speculative="off", prompt="A fox")
    assert LiveRun(room.queue, lambda pair: engine, how).done.wait(20)
    until(lambda: not sound)
    sound.append(True)
    assert LiveRun(room.queue, lambda pair: engine, how).done.wait(20)
    until(lambda: not sound)

    async def look() -> dict[str, Any]:
        return json.loads((await anext(aiter(room.workshop.room.channel.read())))[1])

    seen = complete(asyncio.wait_for(look(), 10))
    assert (seen["running"], seen["waiting"], seen["done"]) == (0, 0, 1)


def test_the_workshop_ends_for_everyone_when_the_server_closes() -> None:
    room = Room()
    threads = [thread for thread in threading.enumerate() if thread.name == "decode-lab-room"]
    assert threads
    assert all(thread.daemon for thread in threads), "a server that cannot listen ends without closing"
    room.queue.close(1)
    channels = (room.workshop.room.channel, room.workshop.lead.channel)
    until(lambda: all(channel.closed for channel in channels))
