"""Behind a proxy that serves the lab below a path of its own, such as /lab, and passes that path on.

``GRADIO_ROOT_PATH`` says which path. It is taken off before anything looks at an address: what stands in Gradio's way
(``security.py``) must see the same address as Gradio does. A proxy that takes it off itself needs no setting: a page
knows by its own address where the lab is (``page_head.py``).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPathMiddleware:
    """Passes requests on without the path of their ``root_path``, which may be a whole URL."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root = urlsplit(scope.get("root_path", "")).path.rstrip("/")
        if root and "path" in scope:  # a server's start and end have none
            path = scope["path"]
            below = path.startswith(f"{root}/") or path == root
            scope = scope | {"path": (path[len(root) :] or "/") if below else path, "root_path": ""}
        await self._app(scope, receive, send)
