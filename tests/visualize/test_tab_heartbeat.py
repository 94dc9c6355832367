"""A tab is gone when it says so, or does not return after its connection broke; one that is away is not forgotten, nor
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
    """Browser tabs before a server. ``left``: the sessions that were reported as gone."""

    def __init__(self, **limits: float) -> None:
        self.left: list[str] = []
        self.closed = False
        self._presence = HeartbeatMiddleware(None, self.left.append, lambda: self.closed, **limits)

    async def ask(self, path: str, method: str = "POST") -> int:
        """The status of an answer."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await self._presence({"type": "http", "path": path, "method": method}, asyncio.Event().wait, send)
        await settle()
        return sent[0]["status"]

    async def connect(self, path: str = TAB) -> Callable[[], Coroutine[Any, Any, None]]:
        """A connection: it breaks when called."""
        broken, came = asyncio.Event(), []

        async def receive() -> Any:
            await broken.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            came.append(message.get("body", message.get("status")))

        answering = asyncio.create_task(self._presence({"type": "http", "path": path, "method": "GET"}, receive, send))
        await settle()
        assert came == [200, ALIVE]

        async def close() -> None:
            broken.set()
            await answering
            await settle()

        return close


STORIES = {
    # connect, break (the oldest connection), away and gone (the tab's news), a wait in seconds, and =how many have left
    "no connection follows the last": "connect connect break 30 =0 break 12 =0 3 =1",
    "it may return each time": "connect break 12 connect break 12 connect break 12 connect 30 =0 break 15 =1",
    "closed, a moment after its connection broke": "connect break gone =1",
    "closed, before that, and opened anew": "connect gone =1 connect break 30 =1",
    "away after its connection broke": "connect break away 30 =0",
    "away until it is closed": "connect away break connect =0 away break =0 gone =1 connect 30 =1",
    "back before its first connection is closed": "connect away connect break break =0 15 =1",
    "not away for ever": "connect away break 5760 =0 connect away break 5760 connect 14400 =0 away break 7200 =1",
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_tab_is_there_until_it_is_closed_or_does_not_return(story: str) -> None:
    assert (RETURNS_S, AWAY_S) == (15, 7200), "as in the stories"

    async def play() -> None:
        tabs, connections = Tabs(), []
        for step in story.split():
            match step:
                case "connect":
                    connections.append(await tabs.connect())
                case "break":
                    await connections.pop(0)()
                case "away" | "gone":
                    assert await tabs.ask(f"{TAB}/{step}") == 204
                case _ if step.startswith("="):
                    assert tabs.left == ["abc"] * int(step[1:])
                case _:
                    await later(float(step))

    complete(play())


def test_a_tab_that_returns_as_it_is_closed_is_not_taken_for_the_one_that_was() -> None:
    async def use() -> None:
        tabs = Tabs()
        await tabs.connect()
        status, _ = await asyncio.gather(tabs.ask(f"{TAB}/gone"), tabs.connect())  # before the old one has ended
        assert (status, tabs.left) == (204, ["abc"])
        assert await tabs.ask(f"{TAB}/away") == 204

    complete(use())


@pytest.mark.parametrize(("paths", "news"), [((TAB, OTHER, THIRD), "away"), ((TAB, OTHER), "")])
def test_of_too_many_who_are_absent_the_first_to_leave_is_forgotten(paths: tuple[str, ...], news: str) -> None:
    async def use() -> None:
        tabs = Tabs(most=1)
        for path in paths:
            close = await tabs.connect(path)
            if path == OTHER and news:
                continue  # it stays
            if news:
                assert await tabs.ask(f"{path}/{news}") == 204
            await close()
        assert tabs.left == ["abc"]

    complete(use())


def test_the_connections_end_with_the_server() -> None:
    async def use() -> None:
        tabs = Tabs()
        await tabs.connect()
        tabs.closed = True
        await later(2)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    complete(use())


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [(f"{TAB}/away", "POST", 404), (f"{TAB}/gone", "POST", 404), (f"{TAB}/away", "GET", 405), (TAB, "POST", 405)],
)
def test_what_makes_no_sense_is_refused(path: str, method: str, status: int) -> None:
    async def use() -> None:
        assert await Tabs().ask(path, method) == status

    complete(use())
