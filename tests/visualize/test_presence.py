"""A tab is gone when it says so, or does not return after its connection broke; whoever is away is not forgotten, nor
kept for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.coroutines import complete
from visualize.jobs.tab_heartbeat import ALIVE, AWAY_S, RETURNS_S, HeartbeatMiddleware

TAB, OTHER, THIRD = (f"/gradio_api/heartbeat/{name}" for name in ("abc", "def", "ghi"))


async def settle() -> None:
    """Let everything happen that waits for nothing else."""
    for _ in range(20):
        await asyncio.sleep(0)


async def later(seconds: float) -> None:
    """Let this time pass, in none."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds
    await settle()


class Tabs:
    """Browser tabs before an app like Gradio's, which notes the heartbeats that it began and ended."""

    def __init__(self, **limits: float) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.down = asyncio.Event()
        self._presence = HeartbeatMiddleware(self._gradio, **limits)

    async def _gradio(self, scope: Any, receive: Callable, send: Callable) -> None:
        self.begun.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        ends = [asyncio.ensure_future(receive()), asyncio.ensure_future(self.down.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        self.ended.append(scope["path"])

    async def ask(self, path: str, method: str = "POST") -> int:
        """The status of an answer."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await self._presence({"type": "http", "path": path, "method": method}, asyncio.Event().wait, send)
        await settle()
        return sent[0]["status"]

    async def connect(self, path: str = TAB) -> tuple[Callable[[], Coroutine], list[bytes]]:
        """A connection: what breaks it, and what came."""
        broken, came = asyncio.Event(), []

        async def receive() -> Any:
            await broken.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            came.append(message.get("body", message.get("status")))

        answering = asyncio.create_task(self._presence({"type": "http", "path": path, "method": "GET"}, receive, send))
        await settle()

        async def close() -> None:
            broken.set()
            await answering
            await settle()

        return close, came


def test_a_tab_is_gone_when_no_connection_follows_its_last() -> None:
    async def use() -> None:
        tabs = Tabs()
        close, came = await tabs.connect()
        close_other, _ = await tabs.connect()  # as a browser does that reconnects before its first is known to be lost
        assert came == [200, ALIVE]
        await close()
        await later(2 * RETURNS_S)
        assert (tabs.begun, tabs.ended) == ([TAB], []), "the other is open"
        await close_other()
        await later(0.8 * RETURNS_S)
        assert tabs.ended == []
        await later(0.2 * RETURNS_S)
        assert (tabs.begun, tabs.ended) == ([TAB], [TAB])

    complete(use())


def test_a_tab_whose_connection_breaks_may_return_each_time() -> None:
    async def use() -> None:
        tabs = Tabs()
        for _ in range(3):
            close, came = await tabs.connect()
            assert came == [200, ALIVE]
            await close()
            await later(0.8 * RETURNS_S)
        close, _ = await tabs.connect()
        await later(2 * RETURNS_S)
        assert (tabs.begun, tabs.ended) == ([TAB], []), "who has returned is not waited for"
        await close()
        await later(RETURNS_S)
        assert tabs.ended == [TAB]

    complete(use())


def test_a_tab_that_is_closed_is_gone_at_once() -> None:
    async def use() -> None:
        tabs = Tabs()
        close, _ = await tabs.connect()
        await close()
        assert await tabs.ask(f"{TAB}/gone") == 204  # a moment after its connection broke
        assert tabs.ended == [TAB]
        close, _ = await tabs.connect()
        assert await tabs.ask(f"{TAB}/gone") == 204  # before that
        assert tabs.ended == [TAB] * 2
        await tabs.connect()  # anew
        await close()
        await later(2 * RETURNS_S)
        assert (tabs.begun, tabs.ended) == ([TAB] * 3, [TAB] * 2)

    complete(use())


def test_a_tab_that_returns_as_it_is_closed_is_not_taken_for_the_one_that_was() -> None:
    async def use() -> None:
        tabs = Tabs()
        await tabs.connect()
        said, _ = await asyncio.gather(tabs.ask(f"{TAB}/gone"), tabs.connect())  # before the old heartbeat has ended
        assert (said, tabs.begun, tabs.ended) == (204, [TAB] * 2, [TAB])
        assert await tabs.ask(f"{TAB}/away") == 204

    complete(use())


def test_a_tab_may_say_that_it_is_away_after_its_connection_broke() -> None:
    async def use() -> None:
        tabs = Tabs()
        close, _ = await tabs.connect()
        await close()
        assert await tabs.ask(f"{TAB}/away") == 204
        await later(2 * RETURNS_S)
        assert tabs.ended == []

    complete(use())


def test_a_tab_that_is_away_is_there_until_it_is_closed() -> None:
    async def use() -> None:
        tabs = Tabs()
        close, _ = await tabs.connect()
        assert await tabs.ask(f"{TAB}/away") == 204
        await close()
        close, came = await tabs.connect()
        assert came == [200, ALIVE]
        assert (tabs.begun, tabs.ended) == ([TAB], [])
        assert await tabs.ask(f"{TAB}/away") == 204
        await close()
        assert tabs.ended == []
        assert await tabs.ask(f"{TAB}/gone") == 204
        assert tabs.ended == [TAB]
        await tabs.connect()  # it was not closed after all: the browser's Back
        assert (tabs.begun, tabs.ended) == ([TAB] * 2, [TAB])

    complete(use())


def test_a_tab_that_came_back_is_no_longer_away() -> None:
    async def use() -> None:
        tabs = Tabs()
        close_first, _ = await tabs.connect()
        await tabs.ask(f"{TAB}/away")
        close, _ = await tabs.connect()  # before the first is closed
        await close_first()
        await close()
        assert tabs.ended == []
        await later(RETURNS_S)
        assert tabs.ended == [TAB]

    complete(use())


def test_nobody_is_away_for_ever() -> None:
    async def use() -> None:
        tabs = Tabs()
        close, _ = await tabs.connect()
        for _ in range(3):
            await tabs.ask(f"{TAB}/away")
            await close()
            await later(0.8 * AWAY_S)
            assert tabs.ended == []
            close, _ = await tabs.connect()
        await later(2 * AWAY_S)
        assert tabs.ended == [], "who is back is not away"
        await tabs.ask(f"{TAB}/away")
        await close()
        await later(AWAY_S)
        assert tabs.ended == [TAB]

    complete(use())


def test_of_too_many_who_are_away_the_first_to_leave_is_forgotten() -> None:
    async def use() -> None:
        tabs = Tabs(most=1)
        for path in (TAB, OTHER, THIRD):
            close, _ = await tabs.connect(path)
            if path != OTHER:
                await tabs.ask(f"{path}/away")
                await close()
        assert tabs.ended == [TAB]

    complete(use())


def test_connections_that_break_are_not_remembered_without_limit() -> None:
    async def use() -> None:
        tabs = Tabs(most=1)
        for path in (TAB, OTHER):
            close, _ = await tabs.connect(path)
            await close()
        assert tabs.ended == [TAB]

    complete(use())


def test_a_connection_ends_with_the_server() -> None:
    async def use() -> None:
        tabs = Tabs()
        close, came = await tabs.connect()
        tabs.down.set()
        await settle()
        assert came == [200, ALIVE, b""]
        await close()
        assert await tabs.ask(f"{TAB}/away") == 404

    complete(use())


def test_a_tab_that_is_waited_for_ends_with_the_server() -> None:
    async def use() -> None:
        tabs = Tabs()
        close, _ = await tabs.connect()
        await close()
        tabs.down.set()
        await settle()
        assert tabs.ended == [TAB]
        assert await tabs.ask(f"{TAB}/away") == 404

    complete(use())


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [(f"{TAB}/away", "POST", 404), (f"{TAB}/gone", "POST", 404), (f"{TAB}/away", "GET", 405), (TAB, "POST", 405)],
)
def test_what_makes_no_sense_is_refused(path: str, method: str, status: int) -> None:
    async def use() -> None:
        assert await Tabs().ask(path, method) == status

    complete(use())
