"""Clients that wait on their own connection: listeners learn in time that they left, and nothing piles up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.coroutines import complete
from visualize import api_clients
from visualize.api_clients import CLIENT, MOST_UNREAD, ClientsMiddleware
from visualize.jobs.job_queue import TICK
from visualize.security import SESSION

CALL, ANSWER, TOOL = "/gradio_api/call/v2/run", "/gradio_api/call/run/abc", "/gradio_api/mcp/"
JOIN, STREAM = "/gradio_api/queue/join", "/gradio_api/queue/data"


async def hangs_up() -> dict[str, str]:
    return {"type": "http.disconnect"}


async def stays() -> dict[str, str]:
    return await asyncio.Event().wait()


class Server:
    """An app like Gradio's behind the middleware. ``reached``: method, path and the client's name of each request;
    ``gone``: the sessions reported as gone. ``answers``: after how many ticks; None: only when the client leaves.
    ``taking``: cleared while it takes a page's events."""

    def __init__(self, answers: int | None = 0, status: dict[str, str] | None = None) -> None:
        self.reached: list[tuple[str, str, str]] = []
        self.gone: list[str] = []
        self.answers, self.waiting, self.taking = answers, set(), asyncio.Event()
        self.taking.set()
        listener = SimpleNamespace(
            targets=[(None, "unload")], fn=lambda request: self.gone.append(request.session_hash)
        )
        other = SimpleNamespace(targets=[(1, "click")], fn=None)
        pages = SimpleNamespace(fns={0: listener, 1: other})
        self.app = ClientsMiddleware(self._gradio, pages=pages, waiting=self.waiting, status=status or {})

    async def _gradio(self, scope: Any, receive: Any, send: Any) -> None:
        client = dict(scope["headers"]).get(CLIENT.encode(), b"").decode()
        self.reached.append((scope["method"], scope["path"], client))
        if scope["path"] == JOIN:
            await self.taking.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["method"] == "POST" and scope["path"] == CALL:
            await send({"type": "http.response.body", "body": b'{"event_id": "abc"}'})
        elif scope["path"] == JOIN:
            await send({"type": "http.response.body"})
        elif self.answers is None:
            await receive()
        else:
            await asyncio.sleep(self.answers * TICK)
            await send({"type": "http.response.body", "body": b"the answer"})

    async def ask(
        self, path: str, method: str = "GET", receive: Callable[[], Awaitable[Any]] = stays, **scope: Any
    ) -> tuple[int, list[bytes]]:
        """The status and the parts of an answer."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "path": path, "method": method, "headers": [], "query_string": b""} | scope
        await self.app(scope, receive, send)
        return sent[0]["status"], [message.get("body", b"") for message in sent[1:]]

    async def join(self, session: str) -> int:
        return (await self.ask(JOIN, "POST", **{SESSION: session}))[0]

    async def read(self, session: str, receive: Callable[[], Awaitable[Any]] = stays) -> bytes:
        return b"".join((await self.ask(STREAM, receive=receive, query_string=f"session_hash={session}".encode()))[1])


def test_a_program_that_hangs_up_is_reported_and_one_that_is_answered_is_not() -> None:
    async def use(server: Server, receive: Callable[[], Awaitable[Any]]) -> list[str]:
        assert (await server.ask(CALL, "POST"))[0] == 200
        await server.ask(ANSWER, receive=receive)
        assert not server.waiting
        reached = list(server.reached)
        assert (await server.ask(ANSWER))[0] == 404, "an answer is fetched once"
        assert server.reached == reached, "Gradio is not asked for what it does not know"
        return server.gone

    assert complete(use(Server(answers=None), hangs_up)) == ["abc"]
    assert complete(use(Server(), hangs_up)) == complete(use(Server(), stays)) == []


def test_a_second_connection_for_an_answer_is_refused_and_ends_nothing() -> None:
    async def use() -> None:
        server = Server(answers=2)
        await server.ask(CALL, "POST")
        first = asyncio.create_task(server.ask(ANSWER))
        await asyncio.sleep(0)
        assert (await server.ask(ANSWER, receive=hangs_up))[0] == 404
        assert (await first)[1][-1] == b"the answer"
        assert server.gone == []

    complete(use())


def test_an_answer_that_is_not_fetched_is_dropped_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_clients, "UNFETCHED_S", 0.05)

    async def use() -> None:
        server = Server()
        await server.ask(CALL, "POST")
        await asyncio.sleep(0.2)
        assert ("GET", f"{CALL}/abc", "") in server.reached
        assert (await server.ask(ANSWER))[0] == 404

    complete(use())


def test_a_tools_client_gets_a_name_that_cannot_be_forged_and_keeps_it_when_its_call_is_passed_on() -> None:
    async def use() -> None:
        server = Server(answers=None)
        forged = {"headers": [(CLIENT.encode(), b"forged")]}
        await server.ask(TOOL, "POST", hangs_up, **forged)
        [(_, _, name)] = server.reached
        assert server.gone == [name] != ["forged"]

        async def passes_on() -> dict[str, str]:
            within = {"headers": [(CLIENT.encode(), server.reached[-1][2].encode())], SESSION: "tools"}
            server.answers = 0
            await server.ask(JOIN, "POST", **within)
            return await hangs_up()

        await server.ask(TOOL, "POST", passes_on)
        assert server.reached[-1][2] == server.reached[-2][2] != ""
        await server.ask(JOIN, "POST", **forged, **{SESSION: "tools"})
        assert server.reached[-1][2] == ""

    complete(use())


def test_a_stream_reports_what_its_client_waits_for_until_the_answer() -> None:
    status = {"abc": "Waiting: 2 runs are before yours."}

    async def use() -> list[bytes]:
        server = Server(answers=6, status=status)
        await server.ask(CALL, "POST")
        asyncio.get_running_loop().call_later(3 * TICK, status.update, {"abc": "Under way"})
        return (await server.ask(ANSWER))[1]

    events = [f"event: progress\ndata: {json.dumps(words)}\n\n".encode() for words in (status["abc"], "Under way")]
    assert complete(use()) == [*events, b"the answer"]


def test_answers_that_are_not_read_do_not_pile_up() -> None:
    async def use() -> None:
        server = Server(answers=3)
        assert [await server.join("page") for _ in range(MOST_UNREAD + 1)] == [200] * MOST_UNREAD + [429]
        assert await server.join("another") == 200
        reading = asyncio.create_task(server.read("page"))
        await asyncio.sleep(0)
        assert [await server.join("page") for _ in range(MOST_UNREAD + 1)] == [200] * (MOST_UNREAD + 1)
        assert await reading == b"the answer"
        assert await server.join("page") == 200

    complete(use())


def test_a_session_that_is_not_known_is_reported_so_at_once() -> None:
    async def use() -> None:
        server = Server(answers=None)
        assert b'"session_not_found":true' in await server.read("page")
        await server.join("page")
        await server.read("page", hangs_up)
        assert b'"session_not_found":true' in await server.read("page"), "its connection broke"

    complete(use())


def test_an_event_that_is_being_taken_while_a_stream_opens_and_ends_is_answered_by_the_next() -> None:
    async def use() -> None:
        server = Server()
        await server.join("page")
        server.taking.clear()
        joining = asyncio.create_task(server.join("page"))
        await asyncio.sleep(0)
        assert await server.read("page") == b"the answer"
        server.taking.set()
        assert await joining == 200
        assert await server.read("page") == b"the answer"

    complete(use())
