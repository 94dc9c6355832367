"""Closes what Gradio leaves open to anyone who can reach it. Mistakes that a caller can fix, at which Gradio itself
would fail, are answered with a sentence and a fitting status."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import gradio as gr
from fastapi.exceptions import RequestValidationError
from gradio.server_messages import UnexpectedErrorMessage
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visualize import gradio_sessions as sessions
from visualize import request_bodies as posted
from visualize import upload_cleanup as sent
from visualize.disconnects import TOOLS
from visualize.request_bodies import MOST_BYTES, Refusal
from visualize.text import visible

API = "/gradio_api/"
CALL = re.compile(rf"{API}call/(v2/)?(\w+)(?:/(\w+))?/?", re.ASCII)
"""Where programs call a function by name, and then fetch the answer by its event."""
PAGES_OWN = f"{API}run/predict"
"""Where Gradio's pages post events that bypass its queue, each with its number."""
QUEUE = f"{API}queue/join"
"""Where they and Gradio's client post all other events."""
ANSWERS = f"{API}queue/data"
"""Where they receive the answers."""
MOST_UNREAD = 32
"""Most events of a session that are in progress, or whose answers nobody has read: Gradio keeps these."""
COMPONENT = f"{API}component_server"
"""Where a component of a page calls its server function."""
FILES = f"{API}upload"
KEPT_FILE = re.compile(rf"{API}file=(?!https?:)[^\0]*", re.DOTALL | re.IGNORECASE)
"""A file on this server. Given a URL, Gradio would fetch it from wherever the caller says."""
OTHERS = re.compile(
    rf"{API}(?:info|app_id|startup-events|theme\.css|upload_progress|heartbeat/[\w-]+(?:/\w+)?|cancel|reset|mcp/schema)/?"
)
"""What else pages, Gradio's client and the hub's MCP server request. A page that lost its server requests ``app_id``
until one answers. MCP's older transport (``mcp/sse``) is not among them: a call by it would outlive its caller."""
ICONS = "/pwa_icon/"
"""Where Gradio scales the icon, which is drawn, and so has no size."""
LONGEST = 255
"""Most bytes of a file's name."""
NOTHING = "There is nothing at this address."


class Guard:
    """Checks requests before Gradio sees them. Unneeded addresses and unknown names are answered 404, requests that are
    too large 413, and values that are missing, too many, unreadable or not on offer 422.

    Args:
        names: of the functions that programs may call.
        hosts: the names that the server answers to; None: any. Where only people at this machine may reach it, a page
            from anywhere could do so through their browser by making its own host name resolve to this machine (DNS
            rebinding): such a host name is answered 421. It could also send requests without seeing the answers:
            every request of another host's page is answered 403. And it could show a page of the lab in a frame of
            its own, where a click, or a link that runs by itself, is not the visitor's: no browser does that.
    """

    def __init__(self, app: ASGIApp, names: Collection[str], hosts: Sequence[str] | None) -> None:
        self._app, self._names, self._hosts = app, names, hosts
        self._stored = sent.Stored()
        others = [f"{host}:*" for host in hosts or () if ":" not in host]  # no such rule can name an IPv6 address
        self._frames = " ".join(["frame-ancestors 'self'", *others]).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._hosts is not None:
            send = self._unframed(send)
        pages = scope["app"].get_blocks()
        call = None
        try:
            if self._hosts is not None:
                _check_host(scope, self._hosts)
            _check_names(scope, pages)
            if not path.startswith(API):
                await self._app(scope, receive, send)
                return
            path = path.rstrip("/")
            call = CALL.fullmatch(path)
            if call:
                self._check_call(call, scope["method"], pages)
            elif path not in (PAGES_OWN, QUEUE, ANSWERS, COMPONENT, FILES) and not any(
                known.fullmatch(path) for known in (TOOLS, KEPT_FILE, OTHERS)
            ):
                raise Refusal(404, NOTHING)
            if path == ANSWERS and not all(sessions.knows(pages, who) for who in _asked(scope, "session_hash")):
                await Response(_GONE, media_type="text/event-stream")(scope, receive, send)
                return
            if scope["method"] == "POST" and path == FILES:
                body = await sent.read(scope, receive)
                self._stored.admit(len(body))
                receive = _again(body, receive)
            elif scope["method"] == "POST":
                document = posted.parsed(await _read(scope, receive))
                receive = _again(json.dumps(self._taken(path, call, document, pages)).encode(), receive)
            await self._app(scope, receive, send)
        except Refusal as refusal:
            await refusal.answer(scope, receive, send)
        except TypeError as error:  # from Gradio's matching of names or form parts, before it answers
            if not call and path != FILES:
                raise
            said = str(error).partition(" Please click on")[0]  # on a footer that the pages do not have
            await _sentence(f"{said} See {API}info for what there is." if call else said)(scope, receive, send)
        except OSError as error:  # from Gradio's storing of a file, before it answers
            if path != FILES:
                raise
            await _sentence(f"The server cannot store this file: {error.strerror}.", 507)(scope, receive, send)
        except ClientDisconnect:
            pass  # while it was still sending

    def _unframed(self, send: Send) -> Send:
        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"content-security-policy", self._frames)]
            await send(message)

        return send_on

    def _check_call(self, call: re.Match[str], method: str, pages: gr.Blocks) -> None:
        _, name, event = call.groups()
        if name not in self._names:
            raise Refusal(404, f"There is no such function here; there are {', '.join(self._names)}.")
        if not event and method == "GET":  # which Gradio would take for the event "run" of a function "v2"
            raise Refusal(405, "Call with POST. The answer is then fetched with GET, with the event's id at the end.")
        # For a caller without a session, Gradio uses the event's id as one.
        if event and event not in sessions.unread(pages, event):
            raise Refusal(404, "There is no such event here, or its answer was fetched already. Call again.")

    def _taken(self, path: str, call: re.Match[str] | None, document: Any, pages: gr.Blocks) -> Any:
        """What is passed to Gradio of ``document``. Raises Refusal."""
        if call and call[1]:
            return posted.by_name(document)
        if call:
            function = next(function for function in pages.fns.values() if function.api_name == call[2])
            return posted.in_order(document, function)
        if path in (PAGES_OWN, QUEUE):
            event = posted.of_event(document, pages, self._names)
            unread = sessions.unread(pages, event["session_hash"])
            if path == QUEUE and len(unread) >= MOST_UNREAD:
                raise Refusal(429, f"{len(unread)} answers wait to be read by you. Read them first.")
            return event
        if path == COMPONENT:
            return posted.of_component(document, pages)
        if TOOLS.fullmatch(path):
            return posted.of_tool(document)
        return posted.an_object(document)


def unreadable(request: Request, error: RequestValidationError) -> Response:
    """The answer to a request that does not match an address's schema: which field, and why. FastAPI would send the
    whole input back, and fails if JSON cannot express it."""
    first = error.errors()[0]
    return _sentence(f"{'.'.join(map(str, first['loc']))}: {first['msg']}.")


def _sentence(said: str, status: int = 422) -> Response:
    """An error as an answer: it may contain a name that the caller made up."""
    return JSONResponse({"detail": visible(said[:200])}, status)


def _asked(scope: Scope, name: str) -> list[str]:
    """The value of this name in the query string, the last if there are several; empty if there is none."""
    return parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True).get(name, [])[-1:]


def _check_host(scope: Scope, hosts: Sequence[str]) -> None:
    """Raises Refusal if the request names another host, or comes from another host's page."""
    headers = Headers(scope=scope)
    host, origin = headers.get("host", ""), headers.get("origin")
    if _named(f"//{host}") not in hosts:
        names = f"{', '.join(hosts[:-1])} or {hosts[-1]}"
        raise Refusal(421, f"This server answers as {names}, not {visible(host[:80])}: see --allowed-hosts.")
    if origin is not None and _named(origin) not in hosts:  # programs send none, nor do browsers that open an address
        raise Refusal(403, f"This server does not answer pages of {visible(origin[:80])}: see --allowed-hosts.")


def _named(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _check_names(scope: Scope, pages: gr.Blocks) -> None:
    """Raises Refusal for names at which Gradio fails: one that is too long for a file, and that of a missing page."""
    path = scope["path"]
    if path.startswith(ICONS):
        raise Refusal(404, NOTHING)
    if any(len(name.encode("utf-8", "replace")) > LONGEST for name in path.split("/")):
        raise Refusal(404, NOTHING)
    if path == "/" and any(name not in pages.config["page"] for name in _asked(scope, "page")):
        raise Refusal(404, NOTHING)


_GONE = UnexpectedErrorMessage(message="There is no such session here.", session_not_found=True)
_GONE = f"data: {_GONE.model_dump_json()}\n\n"
"""What Gradio itself says to an unknown session, but with an error in the log."""


async def _read(scope: Scope, receive: Receive) -> bytes:
    parts, size = [], 0
    async for part in Request(scope, receive).stream():
        size += len(part)
        if size <= MOST_BYTES:  # the rest is read and dropped: a client cut off while sending misses the answer
            parts.append(part)
    if size > MOST_BYTES:
        raise Refusal(413, f"More than {MOST_BYTES >> 20} MiB were sent; no function here takes that much.")
    return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that starts over with ``body``, which was already read."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
