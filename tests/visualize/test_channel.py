"""A channel: many readers, each from where it left off, none holding up another."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.coroutines import complete
from visualize.jobs.sse_channel import ALIVE, END, ROUTE, Channel


def heard(text: str) -> list[str]:
    """The messages of server-sent events, as a browser receives them."""
    events = [event for event in text.split("\n\n") if event.startswith("id:")]
    return ["\n".join(line[6:] for line in event.split("\n") if line.startswith("data: ")) for event in events]


def get(channel_id: str, **headers: str) -> tuple[int, str]:
    answer = TestClient(Starlette(routes=[ROUTE])).get(f"/channels/{channel_id}", headers=headers)
    return answer.status_code, answer.text


def test_messages_of_many_threads_all_have_a_number_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    channel, names = Channel(), [f"{number}" for number in range(8)]

    class Interrupted(dict):
        def __setitem__(self, number: int, message: str) -> None:
            time.sleep(0.001)  # as if another thread had its turn here
            super().__setitem__(number, message)

    monkeypatch.setattr(channel, "_messages", Interrupted())
    speakers = [threading.Thread(target=channel.put, args=(name,)) for name in names]
    for speaker in speakers:
        speaker.start()
    for speaker in speakers:
        speaker.join()
    channel.close()
    assert sorted(heard(get(channel.id)[1])) == names


@given(st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(0, 12))
def test_every_reader_gets_all_messages_from_where_it_begins(begins: list[int], at_once: int) -> None:
    channel, messages = Channel(), [f"message {number}" for number in range(12)]

    def speak() -> None:
        for number, message in enumerate(messages):
            if number >= at_once:
                time.sleep(0.0005)
            channel.put(message)
        channel.close()

    async def listen(begin: int) -> list[tuple[int, str]]:
        return [message async for message in channel.read(begin)]

    async def all_listen() -> list[list[tuple[int, str]]]:
        threading.Thread(target=speak).start()
        return await asyncio.wait_for(asyncio.gather(*map(listen, begins)), 30)

    for begin, got in zip(begins, complete(all_listen()), strict=True):
        assert got == list(enumerate(messages))[begin:]


@given(st.integers(1, 5), st.integers(0, 12), st.integers(0, 12))
def test_a_late_reader_gets_the_messages_kept(keep: int, at_first: int, begin: int) -> None:
    channel, messages = Channel(keep), [f"message {number}" for number in range(12)]

    async def listen() -> list[tuple[int, str]]:
        return [message async for message in channel.read(begin)]

    async def both() -> list[tuple[int, str]]:
        for message in messages[:at_first]:
            channel.put(message)
        reading = asyncio.ensure_future(listen())
        await asyncio.sleep(0)
        for message in messages[at_first:]:
            channel.put(message)
            await asyncio.sleep(0.0005)
        channel.close()
        return await asyncio.wait_for(reading, 30)

    got = complete(both())
    assert got == sorted(set(got))
    assert all(message == messages[number] for number, message in got)
    first = max(begin, at_first - keep)
    assert [number for number, _ in got][-keep:] == list(range(first, 12))[-keep:]
    assert len(channel._messages) == keep


def test_what_is_dropped_while_a_reader_is_about_to_take_it_is_passed_over() -> None:
    channel = Channel(keep=1)

    class Overtaken(dict):
        """Between a reader's look at how many there are and its taking of one, another thread puts the next."""

        def __len__(self) -> int:
            if 1 not in self:
                channel.put("second")
                channel.close()
            return super().__len__()

    async def listen() -> list[tuple[int, str]]:
        return [message async for message in channel.read()]

    channel.put("first")
    channel._messages = Overtaken(channel._messages)
    assert complete(asyncio.wait_for(listen(), 10)) == [(1, "second")]


def test_what_is_put_right_before_the_close_is_heard_by_whoever_has_just_looked() -> None:
    channel = Channel()

    class LookedAt(int):
        """How many there are; as soon as a reader has found none, another thread puts the last and closes."""

        def __gt__(self, begin: int) -> bool:
            there = int(self) > begin
            if not (there or channel.closed):
                channel.put("last")
                channel.close()
            return there

    async def listen() -> list[tuple[int, str]]:
        return [message async for message in channel.read()]

    channel._next = LookedAt(0)
    assert complete(asyncio.wait_for(listen(), 10)) == [(0, "last")]


def test_a_reader_that_stops_is_forgotten() -> None:
    channel = Channel()
    channel.put("first")

    async def leave() -> None:
        reading = asyncio.create_task(anext(stream := channel.read(1)))
        await asyncio.sleep(0.01)
        assert channel.readers == 1
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await stream.aclose()
        assert channel.readers == 0

    complete(leave())
    channel.put("nobody is there, and the loop is closed")


def test_a_channel_knows_for_how_long_nobody_has_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute of that, a run is ended; one that somebody reads may take hours."""
    now = [100.0]
    monkeypatch.setattr("visualize.jobs.sse_channel.time", SimpleNamespace(monotonic=lambda: now[0]))
    channel = Channel()
    now[0] += 70
    assert channel.unread_s == 70

    async def while_heard() -> float:
        reading = asyncio.create_task(anext(stream := channel.read()))
        await asyncio.sleep(0.01)
        now[0] += 1000
        found = channel.unread_s
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await stream.aclose()
        return found

    assert complete(while_heard()) == 0
    now[0] += 5
    assert channel.unread_s == 5


def test_a_page_receives_every_message_and_the_end_and_after_it_reconnects_only_new_ones() -> None:
    channel, messages = Channel(), ['{"a": 1}\n{"b": "\u2028 is no end of a line"}', "1", "2", "3"]
    for message in messages:
        channel.put(f"{message}\n")
    channel.close()
    status, text = get(channel.id)
    assert (status, heard(text)) == (200, messages)
    assert text.endswith("event: end\ndata:\n\n")
    assert heard(get(channel.id, **{"Last-Event-ID": "1"})[1]) == ["2", "3"]
    assert heard(get(f"{channel.id}?after=2")[1]) == ["3"]
    again = get(f"{channel.id}?after=0", **{"Last-Event-ID": "2"})  # by the browser itself, after it was closed once
    assert heard(again[1]) == ["3"]
    for nonsense in ("x' OR 1", "9" * 5000):
        assert heard(get(channel.id, **{"Last-Event-ID": nonsense})[1]) == messages
        assert heard(get(f"{channel.id}?after={nonsense}")[1]) == messages


def test_a_channel_that_is_gone_answers_that_it_has_ended() -> None:
    channel = Channel()
    name = channel.id
    del channel
    gc.collect()
    answer = TestClient(Starlette(routes=[ROUTE])).get(f"/channels/{name}")
    assert (answer.status_code, answer.text) == (200, END)
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-store", "no"), (
        "no proxy keeps it"
    )


def test_a_stream_with_nothing_to_say_says_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visualize.jobs.sse_channel.ALIVE_S", 0.05)
    channel = Channel()
    channel.put("before")
    threading.Timer(0.6, lambda: (channel.put("after"), channel.close())).start()
    _, text = get(channel.id)
    assert heard(text) == ["before", "after"]
    before, silence, after = text.partition(ALIVE)[0], text.count(ALIVE), text.rpartition(ALIVE)[2]
    assert "before" in before
    assert "after" in after
    assert 2 <= silence <= 12, "one in every twentieth of a second of silence, and none besides"
