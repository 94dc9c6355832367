"""Middleware for clients of Gradio's API: who waits for what, who has left, and whose answers nobody reads.

A page reports itself that it is gone (``jobs.tab_heartbeat``). A program that fetches an answer by HTTP, or a tool's by
MCP, has only the connection on which it waits.
"""

import asyncio
import json
import secrets
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs

import gradio as gr
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visualize.jobs.job_queue import TICK
from visualize.security import CALL, JOIN, SESSION, TOOLS

STREAM = "/gradio_api/queue/data"
"""The address at which a page, or Gradio's client, reads all answers of its session."""
UNFETCHED_S = 300.0
"""Seconds after which the answer to a call that nobody fetches is dropped."""
MOST_UNREAD = 32
"""Most events of a session while nobody reads its answers, which Gradio keeps."""
MOST_SESSIONS = 2000
"""Most sessions that are known: as many as Gradio keeps answers of."""
SESSION_GONE = 'data: {"msg":"unexpected_error","message":"There is no such session.","session_not_found":true}\n\n'
"""Gradio's message to an unknown session: the page loads itself again."""
CLIENT = "x-decode-lab-client"
"""The header that names a tool's client: Gradio forwards all tool calls to itself in one session, but keeps their
headers. It is accepted from nobody else."""


def client_of(request: gr.Request) -> str | None:
    """The client that sent the request, as ``ClientsMiddleware`` names them when they leave."""
    return request.headers.get(CLIENT) or request.session_hash


def leave(pages: gr.Blocks, client: str) -> None:
    """Notify the listeners to ``unload`` of a client who has left, as ``session_hash`` of their request."""
    function: Any
    for function in pages.fns.values():
        if any(event == "unload" for _, event in function.targets):
            function.fn(gr.Request(session_hash=client, headers={}))


class ClientsMiddleware:
    """Notices a client who leaves (``leave``).

    A program that fetches an answer by HTTP gets, between Gradio's heartbeats, events called "progress" that say what
    it waits for. (Other clients get this from Gradio.)

    Args:
        waiting: the clients who have not been answered yet, kept up to date.
        status: by client, what it waits for.
    """

    def __init__(self, app: ASGIApp, pages: gr.Blocks, waiting: set[str], status: Mapping[str | None, str]) -> None:
        self._app, self._pages, self._waiting, self._status = app, pages, waiting, status
        self._calls: dict[str, asyncio.Task[None]] = {}  # by the event of a call that nobody has fetched; drops it
        self._tools: set[str] = set()  # clients of tools
        self._unread: OrderedDict[str, int] = OrderedDict()  # by session, events since it was last read
        self._reading: Counter[str] = Counter()  # streams of a session
        self._joining: Counter[str] = Counter()  # its events that are being taken: a stream may end before it has them

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, method = scope["path"].rstrip("/"), scope["method"]
        known = [it for it in scope["headers"] if it[0] != CLIENT.encode() or it[1].decode("latin-1") in self._tools]
        scope = scope | {"headers": known}
        call, answer = CALL.fullmatch(path), self._app
        if call:
            answer = self._fetch if call[3] else self._call
        elif TOOLS.fullmatch(path) and method == "POST":
            answer = self._use_tool
        elif path == JOIN:
            answer = self._join
        elif path == STREAM and method == "GET":
            answer = self._read
        await answer(scope, receive, send)

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A program's call, whose answer has an event's id, by which it will be fetched."""
        parts: list[bytes] = []

        async def passed_on(message: Message) -> None:
            parts.append(message.get("body", b""))
            if message["type"] == "http.response.body" and not message.get("more_body"):
                with suppress(ValueError, TypeError, KeyError):  # it was refused
                    event = json.loads(b"".join(parts))["event_id"]
                    self._calls[event] = asyncio.create_task(self._drop(event, scope))  # before the client knows of it
            await send(message)

        await self._app(scope, receive, passed_on)

    async def _drop(self, event: str, scope: Scope) -> None:
        """Fetch an answer that nobody else does, so that Gradio does not keep it."""
        await asyncio.sleep(UNFETCHED_S)
        del self._calls[event]

        async def unsent(message: Message) -> None:
            pass

        path = f"{scope['path'].rstrip('/')}/{event}"
        await self._app(scope | {"method": "GET", "path": path}, asyncio.Event().wait, unsent)

    async def _fetch(self, scope: Scope, receive: Receive, send: Send) -> None:
        event = scope["path"].rstrip("/").rpartition("/")[2]
        if drops := self._calls.pop(event, None):
            drops.cancel()
            await self._wait(event, scope, receive, send, streams=True)
        else:  # or another connection waits for it: each would get half, and the run would end when either left
            detail = "There is no such event here, or its answer was fetched already. Call again."
            await JSONResponse({"detail": detail}, 404)(scope, receive, send)

    async def _use_tool(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = secrets.token_hex(16)
        self._tools.add(client)
        try:
            headers = [*scope["headers"], (CLIENT.encode(), client.encode())]
            await self._wait(client, scope | {"headers": headers}, receive, send, streams=False)
        finally:
            self._tools.discard(client)

    async def _wait(self, client: str, scope: Scope, receive: Receive, send: Send, *, streams: bool) -> None:
        """Pass an answer on, and notice when its client leaves before it is whole."""
        begun = answered = False

        async def passed_on(message: Message) -> None:
            nonlocal begun, answered
            answered |= message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)
            begun = begun or (streams and message["type"] == "http.response.start" and message["status"] == 200)

        async def progress() -> None:
            last = ""
            while not answered:
                if begun and (now := self._status.get(client, last)) != last:
                    last = now
                    event = f"event: progress\ndata: {json.dumps(now)}\n\n"
                    await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
                await asyncio.sleep(TICK)

        async def heard() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not answered:
                leave(self._pages, client)
            return message

        self._waiting.add(client)
        reporting = asyncio.create_task(progress())
        try:
            await self._app(scope, heard, passed_on)
        finally:
            reporting.cancel()
            self._waiting.discard(client)

    async def _join(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A page's event, whose answer is read from the session's stream."""
        session = scope[SESSION]
        unread = 0 if self._reading[session] else self._unread.get(session, 0)
        if unread >= MOST_UNREAD:
            detail = f"{unread} answers wait to be read by you. Read them first."
            await JSONResponse({"detail": detail}, 429)(scope, receive, send)
            return
        self._unread[session] = unread + 1
        self._unread.move_to_end(session)
        if len(self._unread) > MOST_SESSIONS:
            self._unread.popitem(last=False)
        self._joining[session] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._joining -= Counter([session])

    async def _read(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A session's stream."""
        asked = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        session = asked.get("session_hash", [None])[-1]
        if session is not None and session not in self._unread:
            await Response(SESSION_GONE, media_type="text/event-stream")(scope, receive, send)
            return
        self._unread[session] = self._joining[session]
        self._reading[session] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._reading -= Counter([session])  # which drops those without one
            if not self._reading[session] and not self._unread.get(session):
                self._unread.pop(session, None)
