"""Callers who wait on a connection of their own: they are told what they wait for, and have left when it closes.

A page says when it is gone, or does not return (``presence.py``), and Gradio notifies the listeners to ``unload``.
A program that fetches an answer by HTTP, or a tool's by MCP, has only the connection on which it waits.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections import Counter
from collections.abc import Mapping
from urllib.parse import parse_qs

import gradio as gr
from gradio.block_function import BlockFunction
from gradio.routes import App
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visualize import gradio_sessions as sessions
from visualize.jobs.job_queue import TICK

ANSWER = re.compile(r"/gradio_api/call/(?:v2/)?\w+/(\w+)")
"""Where a program waits for an answer; the last part is the event's id, also the session of a caller without one."""
WAITED_FOR = "Another connection waits for this answer already. Read it there, or call again."
STREAM = "/gradio_api/queue/data"
"""Where a page, or Gradio's client, reads all answers of its session."""
UNFETCHED_S = 300.0
"""Seconds after which answers that nobody waits for are forgotten; it may take up to twice as long."""
TOOLS = re.compile(r"/gradio_api/mcp(?:/http)?/?")
"""Where MCP tools are called. Gradio forwards such a call to itself, over HTTP."""
CALLER = "x-decode-lab-caller"
"""The header that identifies a tool's caller: Gradio forwards all tool calls to itself in one session, but keeps their
headers. This one is accepted from nobody else."""


def caller(request: gr.Request) -> str | None:
    """Who sent the request, as ``Leaving`` names them when they leave."""
    return request.headers.get(CALLER) or request.session_hash


class Leaving:
    """Notifies the listeners to ``unload`` of a caller who has left, as ``session_hash`` of their request. Nothing is
    kept of callers who have been answered.

    A program that fetches an answer by HTTP gets, between Gradio's heartbeats, events called "progress" that say what
    it waits for. (Other callers get this from Gradio.)

    Args:
        waiting: always holds the callers who have not been answered yet.
        told: by caller, what to say in such an event.
        unfetched_s: see ``UNFETCHED_S``.
    """

    def __init__(
        self, app: ASGIApp, waiting: set[str], told: Mapping[str | None, str], unfetched_s: float = UNFETCHED_S
    ) -> None:
        self._app, self._waiting, self._told, self._unfetched_s = app, waiting, told, unfetched_s
        self._calling: set[bytes] = set()  # callers of tools
        self._reading: Counter[str] = Counter()  # streams of a session
        self._sweeping: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope.get("path", ""), scope.get("method")
        scope = self._without_forged(scope)
        if scope["type"] == "http" and self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep(scope["app"]))
        if method == "GET" and (found := ANSWER.fullmatch(path)):
            who = found[1]
            if who in self._waiting:  # each would get half of the answer, and the run would end when either left
                await JSONResponse({"detail": WAITED_FOR}, 409)(scope, receive, send)
                return
        elif method == "POST" and TOOLS.fullmatch(path):
            who = secrets.token_hex(16)
            scope = scope | {"headers": [*scope["headers"], (CALLER.encode(), who.encode())]}
            self._calling.add(who.encode())
        elif method == "GET" and path == STREAM:
            await self._read(scope, receive, send)
            return
        elif method == "GET" and TOOLS.fullmatch(path):
            await self._listen(scope, receive, send)
            return
        else:
            await self._app(scope, receive, send)
            return
        app, streams, answered = scope["app"], False, False  # read now: further in, MCP has an app of its own

        async def passed_on(message: Message) -> None:
            nonlocal streams, answered
            answered |= message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)
            if message["type"] == "http.response.start":
                streams = method == "GET" and message["status"] == 200

        async def progress() -> None:
            said = ""
            while not answered:
                now = self._told.get(who, said)
                if streams and now != said:
                    said = now
                    event = f"event: progress\ndata: {json.dumps(now)}\n\n"
                    await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
                await asyncio.sleep(TICK)

        async def heard() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not answered:
                _leave(app.get_blocks().fns, who)
            return message

        self._waiting.add(who)
        telling = asyncio.create_task(progress())
        try:
            await self._app(scope, heard, passed_on)
        finally:
            telling.cancel()
            self._waiting.discard(who)
            self._calling.discard(who.encode())
            if streams:  # a refused request left the answer in place
                sessions.forget(app, who)

    async def _read(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a session's stream on, and know that it is read."""
        [who] = parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])[-1:]
        self._reading[who] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._reading -= Counter([who])  # which drops those without one

    async def _listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on the stream that an MCP client keeps open, and complete it when the server ends: what serves it just
        returns then."""
        unfinished = False

        async def passed_on(message: Message) -> None:
            nonlocal unfinished
            unfinished = message["type"] == "http.response.start" or bool(message.get("more_body"))
            await send(message)

        await self._app(scope, receive, passed_on)
        if unfinished:
            await send({"type": "http.response.body"})

    async def _sweep(self, app: App) -> None:
        """Forget answers that were ready at the last look and that nobody has come to read."""
        before: set[str] = set()
        while True:
            await asyncio.sleep(self._unfetched_s)
            pages = app.get_blocks()
            left = {who for who in sessions.answered(pages) - self._waiting if not self._reading[who]}
            for who in left & before:
                if who in sessions.unread(pages, who):  # a call, whose session is named after its event
                    sessions.forget(app, who)
                else:  # a page, or Gradio's client, perhaps still there
                    sessions.forget_answers(pages, who)
            before = left

    def _without_forged(self, scope: Scope) -> Scope:
        """``scope`` without a ``CALLER`` header that was not set here."""
        if "headers" not in scope:
            return scope
        name = CALLER.encode()
        kept = [header for header in scope["headers"] if header[0] != name or header[1] in self._calling]
        return scope | {"headers": kept}


def _leave(functions: Mapping[int, BlockFunction], who: str) -> None:
    for function in functions.values():
        if any(event == "unload" for _, event in function.targets):
            function.fn(gr.Request(session_hash=who, headers={}))
