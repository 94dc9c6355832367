"""Which tabs are there, with and without a connection of their own.

As long as a page is there it keeps a request open, Gradio's "heartbeat", and when that breaks, Gradio notifies the
listeners to ``unload``. But a browser opens six connections to a server, over all its tabs: the sixth tab would never
load. So a tab that is hidden, with nothing under way, says that it stays and closes its connection until it is shown
(``presence.js``).
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visualize.server.visitors import MOST

HEARTBEAT = re.compile(r"(/gradio_api/heartbeat/[\w-]+)(?:/(away|gone))?/?", re.ASCII)
ALIVE = b"data: ALIVE\n\n"
EVERY = 15.0
"""Seconds between signs of life: Gradio's own."""
PATIENCE = 2 * 3600.0
"""Seconds for which a tab may be away. One that is closed says so; a browser that is killed does not."""
STREAM = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


class _Tab:
    """A tab, for which one heartbeat is kept open within this process until it is ``gone``."""

    def __init__(self) -> None:
        self.connections = 0
        self.away = False
        self.gone = asyncio.Event()
        self.heartbeat: asyncio.Task[None]
        self.expiry: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """It is not, or no longer, away."""
        self.away = False
        if self.expiry:
            self.expiry.cancel()


class Presence:
    """Stands between the tabs' connections and Gradio's heartbeats.

    A tab is gone when its last connection breaks, unless it said that it is away; then, when it says so, when it has
    been away for ``patience`` seconds, or when ``most`` others are.
    """

    def __init__(self, app: ASGIApp, patience: float = PATIENCE, most: int = MOST) -> None:
        self._app, self._patience, self._most = app, patience, most
        self._tabs: dict[str, _Tab] = {}  # by the path of their heartbeat; the last to go away last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = HEARTBEAT.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if not found:
            await self._app(scope, receive, send)
            return
        path, said = found.groups()
        wanted = "POST" if said else "GET"
        if scope["method"] != wanted:
            await Response(status_code=405, headers={"Allow": wanted})(scope, receive, send)
        elif said is None:
            await self._connected(path, scope, receive, send)
        elif tab := self._tabs.get(path):
            (self._away if said == "away" else self._gone)(path, tab)
            await Response(status_code=204)(scope, receive, send)
        else:
            await Response(status_code=404)(scope, receive, send)

    async def _connected(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a tab's request until either side ends it."""
        tab = self._tabs.get(path) or self._begin(path, scope)
        tab.connections += 1
        tab.wake()

        async def broken() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        ends = {asyncio.create_task(broken()), tab.heartbeat}
        try:
            await send(STREAM)
            while True:
                await send({"type": "http.response.body", "body": ALIVE, "more_body": True})
                done, _ = await asyncio.wait(ends, timeout=EVERY, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    break
            with suppress(OSError):  # nobody is there any more
                await send({"type": "http.response.body", "body": b""})
        finally:
            (ends - {tab.heartbeat}).pop().cancel()
            tab.connections -= 1
            if not tab.connections and not tab.away:
                self._gone(path, tab)

    def _begin(self, path: str, scope: Scope) -> _Tab:
        """Ask Gradio for the heartbeat of a new tab."""
        tab = self._tabs[path] = _Tab()

        async def receive() -> Message:
            if not tab.gone.is_set():
                await tab.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            pass

        async def beat() -> None:
            try:
                await self._app(scope, receive, send)
            finally:  # also when the server shuts down
                self._gone(path, tab)

        tab.heartbeat = asyncio.create_task(beat())
        return tab

    def _away(self, path: str, tab: _Tab) -> None:
        tab.wake()
        tab.away = True
        tab.expiry = asyncio.get_running_loop().call_later(self._patience, self._gone, path, tab)
        self._tabs[path] = self._tabs.pop(path)
        away = [(path, tab) for path, tab in self._tabs.items() if tab.away]
        for longest in away[: -self._most]:
            self._gone(*longest)

    def _gone(self, path: str, tab: _Tab) -> None:
        tab.wake()
        tab.gone.set()
        if self._tabs.get(path) is tab:
            del self._tabs[path]
