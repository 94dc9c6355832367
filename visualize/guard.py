"""What Gradio answers with an internal error although the caller can mend it: a sentence, and a status that says so."""

from __future__ import annotations

from collections.abc import Collection

from gradio.route_utils import FnIndexInferError
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

CALLS = ("/gradio_api/call/v2/", "/gradio_api/call/", "/gradio_api/run/", "/gradio_api/api/")
PAGES_OWN = "/gradio_api/run/predict"
"""Where Gradio's pages post those of their events that do not wait in its queue, each with its number."""


class Guard:
    """Calls by name: an unknown name is 404, arguments that are missing or not there to give are 422.

    Args:
        names: of the functions that programs may call.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        prefix = next((prefix for prefix in CALLS if path.startswith(prefix)), None)
        if scope["type"] != "http" or prefix is None:
            await self._app(scope, receive, send)
            return
        name = path.removeprefix(prefix).split("/")[0]
        if name not in self._names and path != PAGES_OWN:
            there = ", ".join(self._names)
            answer = JSONResponse({"detail": f"There is no such function here; there are {there}."}, 404)
            await answer(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except (TypeError, FnIndexInferError) as error:  # of Gradio's matching, before anything is answered
            await JSONResponse({"detail": str(error)}, 422)(scope, receive, send)
