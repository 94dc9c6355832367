"""Callers who leave without a word: whoever waits over a connection of its own has gone when that closes.

A page keeps a connection open for as long as it is there, and Gradio tells those who listen to ``unload`` when it
breaks off. A program that fetches an answer by HTTP, or a tool's by MCP, has only the connection on which it waits.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping

import gradio as gr
from gradio.block_function import BlockFunction
from gradio.state_holder import StateHolder
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ANSWER = re.compile(r"/gradio_api/call/(?:v2/)?\w+/(\w+)")
"""Where a program waits for what it called; the last part is the event, and so the session of a caller without one."""
TOOLS = re.compile(r"/gradio_api/mcp(?:/http)?/?")
CALLER = "x-decode-lab-caller"
"""Gradio hands a tool's call on to itself, all in one session. It keeps the headers, this one too."""


def caller(request: gr.Request) -> str | None:
    """Who asks, as ``Leaving`` tells when they leave."""
    return request.headers.get(CALLER) or request.session_hash


class Leaving:
    """Tells the listeners to ``unload`` of a caller who has left, as ``session_hash`` of their request. Of who has been
    answered, nothing is kept.

    Args:
        waiting: holds at any time who has not been answered yet.
    """

    def __init__(self, app: ASGIApp, waiting: set[str]) -> None:
        self._app, self._waiting = app, waiting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope.get("path", ""), scope.get("method")
        if method == "GET" and (found := ANSWER.fullmatch(path)):
            who = found[1]
        elif method == "POST" and TOOLS.fullmatch(path):
            who = secrets.token_hex(16)
            kept = [header for header in scope["headers"] if header[0] != CALLER.encode()]
            scope = scope | {"headers": [*kept, (CALLER.encode(), who.encode())]}
        else:
            await self._app(scope, receive, send)
            return
        app, answered = scope["app"], False  # asked now: within, MCP is an app of its own

        async def told(message: Message) -> None:
            nonlocal answered
            await send(message)
            answered |= message["type"] == "http.response.body" and not message.get("more_body")

        async def heard() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not answered:
                _leave(app.get_blocks().fns, who)
            return message

        self._waiting.add(who)
        try:
            await self._app(scope, heard, told)
        finally:
            self._waiting.discard(who)
            _forget(app.state_holder, who)


def _leave(functions: Mapping[int, BlockFunction], who: str) -> None:
    for function in functions.values():
        if any(event == "unload" for _, event in function.targets):
            function.fn(gr.Request(session_hash=who, headers={}))


def _forget(sessions: StateHolder, who: str) -> None:
    """A session of Gradio's is half a megabyte, of which it keeps thousands. Nobody comes back to one call's."""
    with sessions.lock:
        sessions.session_data.pop(who, None)
        sessions.time_last_used.pop(who, None)
