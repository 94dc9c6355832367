"""What is left of callers who wait over a connection of their own: nothing, and who listens hears of it in time."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.coroutines import complete
from visualize.server.leaving import CALLER, Leaving
from visualize.server.work import TICK


def passed(path: str, method: str, *, hangs_up: bool) -> tuple[list[str], list[str], dict[str, str]]:
    """Of one request: who was told of as gone, whose sessions are kept, and the headers within."""
    gone: list[str] = []
    listener = SimpleNamespace(targets=[(None, "unload")], fn=lambda request: gone.append(request.session_hash))
    other = SimpleNamespace(targets=[(1, "click")], fn=lambda request: gone.append("clicked"))
    holder = SimpleNamespace(session_data={"abc": 1, "page": 2}, time_last_used={}, lock=threading.Lock())
    blocks = SimpleNamespace(fns={0: listener, 1: other})
    app = SimpleNamespace(get_blocks=lambda: blocks, state_holder=holder)
    heard: dict[str, str] = {}
    waiting: set[str] = set()

    async def within(scope: Any, receive: Any, send: Any) -> None:
        heard.update({name.decode(): value.decode() for name, value in scope["headers"]})
        scope["app"] = None  # as when another app is mounted within
        if not hangs_up:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        await receive()

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pass

    scope = {"type": "http", "path": path, "method": method, "headers": [(CALLER.encode(), b"forged")], "app": app}
    complete(Leaving(within, waiting, {})(scope, receive, send))
    assert not waiting
    return gone, list(holder.session_data), heard


@pytest.mark.parametrize("path", ["/gradio_api/call/run/abc", "/gradio_api/call/v2/run/abc"])
def test_who_fetches_an_answer_is_its_event(path: str) -> None:
    assert passed(path, "GET", hangs_up=True)[:2] == (["abc"], ["page"])
    assert passed(path, "GET", hangs_up=False)[:2] == ([], ["page"])


def test_who_calls_a_tool_has_a_name_that_nobody_can_choose() -> None:
    gone, kept, heard = passed("/gradio_api/mcp/", "POST", hangs_up=True)
    assert gone == [heard[CALLER]] != ["forged"]
    assert kept == ["abc", "page"]
    assert passed("/gradio_api/mcp/", "POST", hangs_up=False)[0] == []


@pytest.mark.parametrize(("path", "method"), [("/gradio_api/call/run", "POST"), ("/metrics", "GET"), ("/", "GET")])
def test_others_are_let_pass_without_a_name_of_their_own(path: str, method: str) -> None:
    gone, kept, heard = passed(path, method, hangs_up=True)
    assert gone == []
    assert kept == ["abc", "page"]
    assert heard == {}


def test_a_tools_call_keeps_its_name_when_it_is_handed_on() -> None:
    handed_on: list[Any] = []
    app = SimpleNamespace(state_holder=SimpleNamespace(session_data={}, time_last_used={}, lock=threading.Lock()))

    async def within(scope: Any, receive: Any, send: Any) -> None:
        handed_on.append(scope["headers"])
        if scope["path"] == "/gradio_api/mcp/":
            await leaving(scope | {"path": "/gradio_api/queue/join"}, None, None)

    leaving = Leaving(within, set(), {})
    scope = {"type": "http", "path": "/gradio_api/mcp/", "method": "POST", "headers": [], "app": app}
    complete(leaving(scope, None, None))
    assert len(handed_on[0]) == 1
    assert handed_on[1] == handed_on[0]
    complete(leaving(scope | {"path": "/gradio_api/queue/join", "headers": handed_on[0]}, None, None))
    assert handed_on[2] == []  # its call is over


@pytest.mark.parametrize(("method", "status", "told"), [("GET", 200, True), ("GET", 404, False), ("POST", 200, False)])
def test_a_stream_says_between_what_gradio_says_what_its_caller_waits_for(method: str, status: int, told: bool) -> None:
    path = "/gradio_api/call/run/abc" if method == "GET" else "/gradio_api/mcp/"
    sent: list[bytes] = []
    says = {"abc": "Waiting: 2 runs are before yours."}
    holder = SimpleNamespace(session_data={}, time_last_used={}, lock=threading.Lock())

    async def within(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(2 * TICK)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await asyncio.sleep(3 * TICK)
        says["abc"] = "Under way"
        await asyncio.sleep(3 * TICK)
        await send({"type": "http.response.body", "body": b"the answer"})
        says["abc"] = "too late"
        await asyncio.sleep(3 * TICK)

    async def send(message: Any) -> None:
        sent.append(message.get("body", b"start"))

    scope = {"type": "http", "path": path, "method": method, "headers": [], "app": SimpleNamespace(state_holder=holder)}
    complete(Leaving(within, set(), says)(scope, None, send))
    progress = [
        f'event: progress\ndata: "{words}"\n\n'.encode() for words in ("Waiting: 2 runs are before yours.", "Under way")
    ]
    assert sent == [b"start", *(progress if told else []), b"the answer"]
