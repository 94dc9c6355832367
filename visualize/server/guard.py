"""What Gradio answers with an internal error although the caller can mend it: a sentence, and a status that says so."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from gradio.route_utils import FnIndexInferError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

API = "/gradio_api/"
CALLS = (f"{API}call/v2/", f"{API}call/", f"{API}run/", f"{API}api/")
PAGES_OWN = f"{API}run/predict"
"""Where Gradio's pages post those of their events that do not wait in its queue, each with its number."""
QUEUE = f"{API}queue/join"
"""Where they, and Gradio's client, post the others."""
TOOLS = f"{API}mcp"
"""Where tools are called. Gradio hands such a call on to itself, over HTTP."""
FILES = f"{API}upload"
"""Its size is limited by ``launch``."""
MOST_BYTES = 8 * 2**20
"""Of anything else that is posted. A lesson's runs, the most that a page sends, have 1 MB."""
DEEPEST = 64
"""Lists and objects within each other."""


class Refusal(Exception):
    """With a status and a sentence."""

    def __init__(self, status: int, detail: str) -> None:
        self.answer = JSONResponse({"detail": detail}, status)


class Guard:
    """An unknown name is 404; too much is 413; values that are missing, too many, not to be read or not there to give
    are 422.

    Args:
        names: of the functions that programs may call.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not path.startswith(API) or path == FILES:
            await self._app(scope, receive, send)
            return
        try:
            name = self._name(path)
            if scope["method"] == "POST":
                body = await _read(scope, receive)
                document = _parsed(body)
                _check(scope["app"].get_blocks().fns, path, name, document)
                if path.startswith(TOOLS):
                    _refuse_half_a_character(document)
                receive = _again(body, receive)
            await self._app(scope, receive, send)
        except Refusal as refusal:
            await refusal.answer(scope, receive, send)
        except (TypeError, FnIndexInferError) as error:  # of Gradio's matching, before anything is answered
            if not path.startswith(CALLS):
                raise
            await JSONResponse({"detail": str(error)}, 422)(scope, receive, send)
        except ClientDisconnect:
            pass  # while it was still speaking

    def _name(self, path: str) -> str:
        """The function that is called; empty for pages' own events. Raises Refusal for what programs may not call."""
        prefix = next((prefix for prefix in CALLS if path.startswith(prefix)), None)
        if prefix is None or path == PAGES_OWN:
            return ""
        name = path.removeprefix(prefix).split("/")[0]
        if name not in self._names:
            raise Refusal(404, f"There is no such function here; there are {', '.join(self._names)}.")
        return name


async def _read(scope: Scope, receive: Receive) -> bytes:
    parts, size = [], 0
    async for part in Request(scope, receive).stream():
        size += len(part)
        if size <= MOST_BYTES:  # the rest is thrown away: who is not heard out does not listen either
            parts.append(part)
    if size > MOST_BYTES:
        raise Refusal(413, f"More than {MOST_BYTES >> 20} MiB were sent; that is no call of any function here.")
    return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """``receive`` from the beginning, when ``body`` has been read."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _parsed(body: bytes) -> Any:
    """The document; None if it is no JSON, which whoever is asked says. Raises Refusal for one too deep to read."""
    try:
        level = [document := json.loads(body)]
    except RecursionError:
        raise Refusal(422, _TOO_DEEP) from None
    except ValueError:
        return None
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    if level:
        raise Refusal(422, _TOO_DEEP)
    return document


_TOO_DEEP = f"The JSON is too deep: at most {DEEPEST} lists and objects are within each other."


def _refuse_half_a_character(document: Any) -> None:
    """JSON can say it in an escape; HTTP, by which it is handed on, cannot. Raises Refusal."""
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refusal(422, "What was sent is not valid text: half a character (a lone surrogate) is in it.") from None


def _check(functions: dict[int, Any], path: str, name: str, document: Any) -> None:
    """Gradio takes any number of values and any event's number, and fails when it comes to use them."""
    values = document.get("data") if isinstance(document, dict) else None
    if not isinstance(values, list):
        return
    if path.rstrip("/") == f"{API}call/{name}":
        wanted = next(len(function.inputs) for function in functions.values() if function.api_name == name)
        if len(values) != wanted:
            raise Refusal(
                422, f"{name} takes {wanted} values in their order, not {len(values)}. By name, at call/v2, few do."
            )
    elif path == QUEUE and isinstance(number := document.get("fn_index"), int):
        if number not in functions:
            raise Refusal(422, f"There is no event {number} here: the page is of another time. Load it again.")
        if len(values) < (wanted := len(functions[number].inputs)):
            raise Refusal(422, f"This event takes {wanted} values, not {len(values)}.")
