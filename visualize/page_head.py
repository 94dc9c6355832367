"""Middleware that completes the head of Gradio's pages: title, a line about the page, its own address, and the scripts
that have to be there before Gradio's.

Gradio's says of every page of every app that it is Gradio, which is then what a chat shows under a link to a run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visualize.assets import TITLE, read
from visualize.page_list import ABOUT
from visualize.static_page import introduction

GRADIOS = re.compile(r'<meta\s+(?:property|name)="(?:og|twitter):[^>]*>\s*')
SCRIPTS = ("static/unloaded.js", "static/presence.js", "static/answers.js")
AFTER_CONFIG = ("<script>window.gradio_api_info", "<script data-gradio-mode", '<script type="module"')
"""The text after the pages' configuration, in any version of Gradio's."""
ROOT = re.compile(r'const root = "[^"]*";')


class PageHeadMiddleware:
    """Rewrites the HTML of the pages in ``names``, by their paths."""

    def __init__(self, app: ASGIApp, names: Mapping[str, str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self._names.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if name is None:
            await self._app(scope, receive, send)
            return
        start: Message = {}
        parts: list[bytes] = []

        async def changed(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            parts.append(message.get("body", b""))
            if message.get("more_body"):
                return
            body, headers = b"".join(parts), MutableHeaders(scope=start)
            if headers.get("content-type", "").startswith("text/html") and start["status"] == 200:
                body = with_head(body.decode(), name).encode()
                headers["content-length"] = str(len(body))
            await send(start)
            await send({"type": "http.response.body", "body": body})

        await self._app(scope, receive, changed)


def with_head(page: str, name: str) -> str:
    """A page's HTML with the head that the page of this name has."""
    title = TITLE if name == "Lab" else f"{name} · {TITLE}"
    scripts = "".join(f"<script>{read(script)}</script>" for script in SCRIPTS)
    begin = next(tag for tag in ('<meta charset="utf-8" />', "<head>") if tag in page)
    page = GRADIOS.sub("", page).replace(begin, f"{begin}\n{introduction(title, ABOUT[name])}\n{scripts}", 1)
    # Where the lab is, a page knows by its own address. Gradio works it out from what the server is told, which behind
    # a proxy may be another host, another scheme, or not the path.
    own = f'gradio_config.title = {json.dumps(title)}; gradio_config.root = document.baseURI.replace(/\\/$/, "");'
    after = next((text for text in AFTER_CONFIG if text in page), "</head>")
    page = page.replace(after, f"<script>{own}</script>{after}", 1)
    return ROOT.sub("const root = gradio_config.root;", page, count=1)
