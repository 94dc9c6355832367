"""Completion of Gradio's pages: a proxy's path, links with old names, what browsers keep, and the pages' heads."""

import json
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lab.settings import OLD_NAMES, with_new_names
from visualize.assets import FOR_EVER, TITLE, read
from visualize.page_list import ABOUT
from visualize.static_page import introduction

HASHED = "/assets/"
"""The address of Gradio's files whose names change with their contents. Gradio does not say so to browsers."""
GRADIOS = re.compile(r'<meta\s+(?:property|name)="(?:og|twitter):[^>]*>\s*')
SCRIPTS = ("static/unloaded.js", "static/presence.js", "static/answers.js")
AFTER_CONFIG = ("<script>window.gradio_api_info", "<script data-gradio-mode", '<script type="module"', "</head>")
"""The text after the pages' configuration, in any version of Gradio's."""
ROOT = re.compile(r'const root = "[^"]*";')
GZIP = Middleware(
    GZipMiddleware,
    compresslevel=5,  # a third of the time that the highest level takes, for a tenth more bytes
    exclude_content_types=(  # scripts and styles are compressed by Gradio, and better
        *DEFAULT_EXCLUDED_CONTENT_TYPES,
        *("text/javascript", "application/javascript", "text/css"),
    ),
)


class PagesMiddleware:
    """Completes Gradio's pages.

    - Behind a proxy that serves the lab below a path of its own, such as /lab, and passes that path on, it is taken off
      before anything looks at an address (``GRADIO_ROOT_PATH``, which may be a whole URL, says which path). A proxy
      that takes it off itself needs no setting: a page knows by its own address where the lab is.
    - A link with old names of settings is redirected to the one with the names of now.
    - Browsers may keep the files below ``HASHED``.
    - The pages in ``names``, by their paths, get a head that says what they are. Gradio's says of every page of every
      app that it is Gradio, which is then what a chat shows under a link to a run.
    """

    def __init__(self, app: ASGIApp, names: Mapping[str, str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _without_root(scope)
        path, reads = scope["path"], scope["method"] == "GET"
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        if reads and not path.startswith("/gradio_api/") and not OLD_NAMES.keys().isdisjoint(query):
            await RedirectResponse(f"?{urlencode(with_new_names(query))}")(scope, receive, send)
        elif reads and path in self._names:
            await self._app(scope, receive, _with_head(send, self._names[path]))
        else:
            await self._app(scope, receive, _kept(send) if path.startswith(HASHED) else send)


def _without_root(scope: Scope) -> Scope:
    root, path = urlsplit(scope.get("root_path", "")).path.rstrip("/"), scope["path"]
    if not root:
        return scope
    below = path.startswith(f"{root}/") or path == root
    return scope | {"path": (path[len(root) :] or "/") if below else path, "root_path": ""}


def _kept(send: Send) -> Send:
    async def lasting(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            MutableHeaders(scope=message)["cache-control"] = FOR_EVER
        await send(message)

    return lasting


def _with_head(send: Send, name: str) -> Send:
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
            body = page_with_head(body.decode(), name).encode()
            headers["content-length"] = str(len(body))
        await send(start)
        await send({"type": "http.response.body", "body": body})

    return changed


def page_with_head(page: str, name: str) -> str:
    """A page's HTML with title, a line about the page, its own address, and the scripts that have to be there before
    Gradio's."""
    title = TITLE if name == "Lab" else f"{name} · {TITLE}"
    scripts = "".join(f"<script>{read(script)}</script>" for script in SCRIPTS)
    begin = next(tag for tag in ('<meta charset="utf-8" />', "<head>") if tag in page)
    page = GRADIOS.sub("", page).replace(begin, f"{begin}\n{introduction(title, ABOUT[name])}\n{scripts}", 1)
    # Gradio works out where the lab is from what the server is told, which behind a proxy may be another host, another
    # scheme, or not the path.
    own = f'gradio_config.title = {json.dumps(title)}; gradio_config.root = document.baseURI.replace(/\\/$/, "");'
    after = next(text for text in AFTER_CONFIG if text in page)
    page = page.replace(after, f"<script>{own}</script>{after}", 1)
    return ROOT.sub("const root = gradio_config.root;", page, count=1)
