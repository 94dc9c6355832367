"""Callers waiting on their own connection leave nothing behind, and listeners learn in time that they left."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.coroutines import complete
from visualize.disconnects import CALLER, Leaving
from visualize.jobs.job_queue import TICK


def server() -> tuple[SimpleNamespace, dict[str, Any]]:
    """Gradio's app with all the state it keeps by session: of a call, abc, and of a page."""
    lock = threading.Lock()

    class Held(dict[str, int]):
        """What Gradio changes with its lock only: it looks for a session, and then moves it."""

        def pop(self, *of: Any) -> Any:
            assert lock.locked()
            return super().pop(*of)

    kept: dict[str, Any] = {name: Held(abc=1, page=2) for name in ("session_data", "time_last_used")}
    kept["pending_messages_per_session"] = {"abc": 1, "page": 2}
    kept["pending_event_ids_session"] = {"abc": {"abc", "another"}, "page": {"click"}}
    events = {name: SimpleNamespace(alive=True) for name in ("abc", "click")}
    queue = SimpleNamespace(**kept, event_ids_to_events=events)
    blocks = SimpleNamespace(fns={}, _queue=queue)
    holder = SimpleNamespace(**kept, lock=lock)
    return SimpleNamespace(get_blocks=lambda: blocks, state_holder=holder), kept


def passed(path: str, method: str, *, hangs_up: bool, status: int = 200) -> tuple[list[str], list[str], dict[str, str]]:
    """For one request: the sessions reported as gone, the sessions with state left, and the headers passed on."""
    gone: list[str] = []
    listener = SimpleNamespace(targets=[(None, "unload")], fn=lambda request: gone.append(request.session_hash))
    other = SimpleNamespace(targets=[(1, "click")], fn=lambda request: gone.append("clicked"))
    app, kept = server()
    app.get_blocks().fns.update({0: listener, 1: other})
    heard: dict[str, str] = {}
    waiting: set[str] = set()

    async def within(scope: Any, receive: Any, send: Any) -> None:
        heard.update({name.decode(): value.decode() for name, value in scope["headers"]})
        scope["app"] = None  # as when another app is mounted inside
        await send({"type": "http.response.start", "status": status, "headers": []})
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
    return gone, sorted({who for known in kept.values() for who in known}), heard


@pytest.mark.parametrize("path", ["/gradio_api/call/run/abc", "/gradio_api/call/v2/run/abc"])
def test_fetching_an_answer_drops_its_state_and_hanging_up_is_reported(path: str) -> None:
    assert passed(path, "GET", hangs_up=True)[:2] == (["abc"], ["page"])
    assert passed(path, "GET", hangs_up=False)[:2] == ([], ["page"])


def test_a_refused_request_keeps_the_answer() -> None:
    """For example, with an unknown function name: the answer can still be fetched."""
    assert passed("/gradio_api/call/rnu/abc", "GET", hangs_up=False, status=404)[:2] == ([], ["abc", "page"])
    assert passed("/gradio_api/call/run/abc", "POST", hangs_up=False, status=405)[:2] == ([], ["abc", "page"])


def test_of_a_call_that_is_known_no_more_nothing_is_left_to_drop() -> None:
    assert passed("/gradio_api/call/run/old", "GET", hangs_up=False)[:2] == ([], ["abc", "page"])


def test_an_event_without_a_caller_is_ended() -> None:
    """While an event is alive, Gradio sends its messages to its session, which must then exist."""
    app, kept = server()
    events = app.get_blocks()._queue.event_ids_to_events

    async def within(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        assert events["abc"].alive

    scope = {"type": "http", "path": "/gradio_api/call/run/abc", "method": "GET", "headers": [], "app": app}

    async def unheard(message: Any) -> None:
        pass

    complete(Leaving(within, set(), {})(scope, None, unheard))
    assert not events["abc"].alive
    assert events["click"].alive
    assert kept["pending_event_ids_session"] == {"page": {"click"}}


def test_an_mcp_caller_gets_a_name_that_cannot_be_forged() -> None:
    gone, kept, heard = passed("/gradio_api/mcp/", "POST", hangs_up=True)
    assert gone == [heard[CALLER]] != ["forged"]
    assert kept == ["abc", "page"]
    assert passed("/gradio_api/mcp/", "POST", hangs_up=False)[0] == []


@pytest.mark.parametrize(("path", "method"), [("/gradio_api/queue/join", "POST"), ("/metrics", "GET"), ("/", "GET")])
def test_other_requests_pass_without_a_caller_name(path: str, method: str) -> None:
    gone, kept, heard = passed(path, method, hangs_up=True)
    assert gone == []
    assert kept == ["abc", "page"]
    assert heard == {}


def called(*, done: int | None = 0, fetched: int | None = None, waits: bool = False) -> list[bool]:
    """Whether state of a call is kept, at each turn of the loop, which lasts as long as an answer may wait. ``done``
    and ``fetched``: the turns in which it is done and fetched."""
    app, kept = server()
    events = app.get_blocks()._queue.event_ids_to_events
    found: list[bool] = []

    async def within(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"event_id": "abc"}'})

    async def unheard(message: Any) -> None:
        pass

    async def turns() -> None:
        leaving = Leaving(within, {"abc"} if waits else set(), {}, unfetched_s=0.0)
        scope = {"type": "http", "path": "/gradio_api/call/v2/run", "method": "POST", "headers": [], "app": app}
        await leaving(scope, None, unheard)
        for turn in range(10):
            if turn == done:
                del events["abc"]
            if turn == fetched:
                await leaving(scope | {"path": f"{scope['path']}/abc", "method": "GET"}, None, unheard)
            await asyncio.sleep(0)
            found.append("abc" in str(kept))
        assert all("page" in known for known in kept.values())

    complete(turns())
    return found


def test_an_answer_that_nobody_fetches_is_forgotten_after_a_while() -> None:
    for done in (0, 5):
        found = called(done=done)
        assert found[: done + 1] == [True] * (done + 1), "under way, or just done"
        assert not found[-1]
    assert all(called(done=None))
    assert all(called(waits=True))
    assert called(fetched=1) == [True] + [False] * 9


@pytest.mark.parametrize("reads", [True, False])
def test_answers_for_a_page_that_nobody_reads_are_forgotten_and_the_page_is_not(reads: bool) -> None:
    app, kept = server()
    app.get_blocks()._queue.event_ids_to_events.clear()  # all is done
    kept["pending_event_ids_session"]["idle"] = set()
    kept["pending_messages_per_session"]["idle"] = 3

    async def within(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    async def turns() -> None:
        leaving, gone = Leaving(within, set(), {}, unfetched_s=0.0), asyncio.Event()
        scope = {"type": "http", "path": "/gradio_api/queue/data", "method": "GET", "headers": [], "app": app}
        who = b"session_hash=page" if reads else b"session_hash=another"
        stream = asyncio.create_task(leaving(scope | {"query_string": who}, gone.wait, None))
        await asyncio.sleep(0)
        await leaving(scope | {"query_string": who}, partial(asyncio.sleep, 0), None)  # of two, one leaves at once
        for _ in range(10):
            await asyncio.sleep(0)
        assert ("page" in kept["pending_messages_per_session"]) is reads
        assert ("page" in kept["pending_event_ids_session"]) is reads
        assert "page" in kept["session_data"]
        gone.set()
        await stream
        for _ in range(10):
            await asyncio.sleep(0)
        assert "page" not in kept["pending_messages_per_session"]
        assert "page" in kept["session_data"]
        assert "idle" in kept["pending_messages_per_session"], "it has read all of its answers"

    complete(turns())


@pytest.mark.parametrize("body", [b'{"detail": "There is no such function here."}', b"Queue is stopped.", b"[]", b""])
def test_a_refused_call_passes_through_unchanged(body: bytes) -> None:
    async def within(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 422, "headers": []})
        await send({"type": "http.response.body", "body": body})

    sent: list[Any] = []

    async def hear(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/gradio_api/call/run", "method": "POST", "headers": [], "app": server()[0]}
    complete(Leaving(within, set(), {})(scope, None, hear))
    assert sent[1]["body"] == body


def test_a_tool_call_keeps_its_name_when_passed_on() -> None:
    handed_on: list[Any] = []
    app, _ = server()

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
def test_a_stream_tells_its_caller_what_it_is_waiting_for(method: str, status: int, told: bool) -> None:
    path = "/gradio_api/call/run/abc" if method == "GET" else "/gradio_api/mcp/"
    sent: list[bytes] = []
    says = ["Waiting: 2 runs are before yours."]

    class Told(dict[str, str]):
        """Says the same to every caller: a tool's has a name that is made up."""

        def get(self, who: str, before: str) -> str:
            return says[-1] or before  # as before the answer comes

    async def within(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(2 * TICK)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"a heartbeat", "more_body": True})
        for words in ("Under way", ""):
            await asyncio.sleep(2 * TICK)
            says.append(words)
        await asyncio.sleep(2 * TICK)
        await send({"type": "http.response.body", "body": b"the answer"})
        says.append("too late")
        await asyncio.sleep(2 * TICK)

    async def send(message: Any) -> None:
        sent.append(message.get("body", b"start"))

    scope = {"type": "http", "path": path, "method": method, "headers": [], "app": server()[0]}
    complete(Leaving(within, set(), Told())(scope, None, send))
    progress = [
        f'event: progress\ndata: "{words}"\n\n'.encode() for words in ("Waiting: 2 runs are before yours.", "Under way")
    ]
    assert sent == [b"start", b"a heartbeat", *(progress if told else []), b"the answer"]


def test_who_has_hung_up_is_told_nothing_more() -> None:
    sent: list[Any] = []
    says = {"abc": "Waiting: 1 run is before yours."}

    async def within(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()

    async def hangs_up() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def hear(message: Any) -> None:
        sent.append(message["type"])

    async def call() -> None:
        scope = {"type": "http", "path": "/gradio_api/call/run/abc", "method": "GET", "headers": [], "app": server()[0]}
        await Leaving(within, set(), says)(scope, hangs_up, hear)
        await asyncio.sleep(2 * TICK)

    complete(call())
    assert sent == ["http.response.start"]
