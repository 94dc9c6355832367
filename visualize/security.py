"""Middleware that stands before Gradio: it checks hosts, addresses, sizes and values, and bounds uploads.

Whatever is refused is answered with a fitting 4xx status and a sentence.
"""

import asyncio
import json
import re
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import gradio as gr
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visualize import request_checks as checks
from visualize.jobs.run_store import MAX_RUN_FILE
from visualize.request_checks import MOST_BYTES, Refusal

API = "/gradio_api/"
CALL = re.compile(rf"{API}call/(v2/)?(\w+)(?:/(\w+))?/?", re.ASCII)
"""The addresses at which programs call a function by name, and then fetch the answer by its event."""
TOOLS = re.compile(rf"{API}mcp(?:/http)?/?")
"""The address of MCP tools. Its older transport (``mcp/sse``) stays closed: a call by it would outlive its client."""
PREDICT, JOIN, UPLOAD = f"{API}run/predict", f"{API}queue/join", f"{API}upload"
"""The addresses of pages' events that bypass Gradio's queue, all other events, and files."""
COMPONENT = f"{API}component_server"
"""The address at which a component of a page calls its server function."""
KNOWN = re.compile(
    rf"{API}(?:run/predict|queue/join|queue/data|component_server|upload|upload_progress|info|app_id|startup-events"
    rf"|theme\.css|heartbeat/[\w-]+(?:/\w+)?|cancel|reset|mcp/schema|mcp(?:/http)?)/?"
)
"""The addresses that pages, Gradio's client and MCP clients request, beside calls."""
LONGEST = 255
"""Most bytes of a file's name."""
SESSION = "decode_lab.session"
"""The key in a request's scope of the session that posts a page's event."""
NOTHING = "There is nothing at this address."
MOST_UPLOAD = MAX_RUN_FILE + 2**16
"""Most bytes of an upload: a run's file and the form around it."""
MOST_STORED = 2**30
"""Most bytes of uploads on disk."""
STORED_S = 3600.0
"""Seconds for which an uploaded file stays on disk: it is read as soon as it arrives."""


class SecurityMiddleware:
    """Refuses what no page and no documented program sends.

    Args:
        names: the functions that programs may call.
        hosts: the names that the server answers to; None: any. Where only this machine may reach the server, a page
            from anywhere could do so through a visitor's browser by making its own host name resolve to this machine
            (DNS rebinding): 421. It could also send requests without seeing the answers: 403. And it could show a page
            of the lab in a frame of its own: no browser does that.
        uploads: the folder in which Gradio stores files.
    """

    def __init__(
        self, app: ASGIApp, pages: gr.Blocks, names: Collection[str], hosts: Sequence[str] | None, uploads: Path
    ) -> None:
        self._app, self._pages, self._names, self._hosts, self._uploads = app, pages, names, hosts, uploads
        others = [f"{host}:*" for host in hosts or () if ":" not in host]  # no such rule can name an IPv6 address
        self._frames = " ".join(["frame-ancestors 'self'", *others])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].rstrip("/")

        async def framed(message: Message) -> None:
            if message["type"] == "http.response.start" and self._hosts is not None:
                MutableHeaders(scope=message)["content-security-policy"] = self._frames
            await send(message)

        try:
            if self._hosts is not None:
                _check_host(Headers(scope=scope), self._hosts)
            self._check_address(scope, path)
            if scope["method"] == "POST" and path.startswith(API):
                receive = _again(await self._checked(scope, receive, path), receive)
            await self._app(scope, receive, framed)
        except Refusal as refusal:
            await refusal.response()(scope, receive, framed)
        except ClientDisconnect:
            pass  # while it was still sending
        except (TypeError, OSError) as error:  # Gradio's, before it answers: an unknown parameter, or a full disk
            if isinstance(error, OSError) and path == UPLOAD:
                refusal = Refusal(507, f"The server cannot store this file: {error.strerror}.")
            elif isinstance(error, TypeError) and (path == UPLOAD or CALL.fullmatch(path)):
                detail = str(error).partition(" Please click on")[0]
                refusal = Refusal(422, f"{detail[:200]} See {API}info for what there is.")
            else:
                raise
            await refusal.response()(scope, receive, framed)

    def _check_address(self, scope: Scope, path: str) -> None:
        pages = parse_qs(scope["query_string"].decode("latin-1")).get("page", [])[-1:]
        too_long = any(len(part.encode("utf-8", "replace")) > LONGEST for part in path.split("/"))
        unknown = not path and any(name not in self._pages.config["page"] for name in pages)
        icon = path.startswith("/pwa_icon/")  # which Gradio would scale: it is drawn, and so has no size
        if too_long or unknown or icon:
            raise Refusal(404, NOTHING)
        if call := CALL.fullmatch(path):
            _, name, event = call.groups()
            if name not in self._names:
                raise Refusal(404, f"There is no such function here; there are {', '.join(self._names)}.")
            if bool(event) != (scope["method"] == "GET"):
                raise Refusal(405, "Call with POST, then fetch the answer with GET and the event's id at the end.")
        elif path.startswith(API) and not KNOWN.fullmatch(path):
            raise Refusal(404, NOTHING)

    async def _checked(self, scope: Scope, receive: Receive, path: str) -> bytes:
        """The body to pass on to Gradio."""
        if path == UPLOAD:
            body = await _read(scope, receive, MOST_UPLOAD, f"A run's file has at most {MAX_RUN_FILE >> 20} MiB.")
            self._make_room(len(body))
            return body
        body = await _read(scope, receive, MOST_BYTES, f"More than {MOST_BYTES >> 20} MiB were sent.")
        document, call = checks.parse(body), CALL.fullmatch(path)
        if call and not call[1]:
            function = next(it for it in self._pages.fns.values() if it.api_name == call[2])
            document = checks.values_in_order(document, function)
        elif path in (PREDICT, JOIN):
            document = checks.page_event(document, self._pages, self._names, self._uploads)
            scope[SESSION] = document["session_hash"]
        elif path == COMPONENT:
            document = checks.component_call(document, self._pages)
        else:
            checks.without_files(document if TOOLS.fullmatch(path) else checks.as_object(document))
        return json.dumps(document).encode()

    def _make_room(self, size: int) -> None:
        """Delete what has been stored long enough, now and when this file's time is over."""
        asyncio.get_running_loop().call_later(STORED_S + 1, self._clean)
        if self._clean() + size > MOST_STORED:
            raise Refusal(507, "Many files were sent to this server lately: it has no room for more. Try again later.")

    def _clean(self) -> int:
        """Delete old uploads. Returns the bytes of those that stay."""
        stored = 0
        for file in self._uploads.rglob("*"):
            with suppress(OSError):  # it may go while it is looked at
                if not file.is_file():
                    continue
                if time.time() - file.stat().st_mtime > STORED_S:
                    file.unlink()
                else:
                    stored += max(file.stat().st_size, 2**12)
        return stored


def unreadable(request: Request, error: RequestValidationError) -> Response:
    """The answer to a request that does not match an address's schema: which field, and why. FastAPI would send the
    whole input back, and fails if JSON cannot express it."""
    return Refusal.of(error.errors()[0]).response()


def _check_host(headers: Headers, hosts: Sequence[str]) -> None:
    """Raises Refusal if the request names another host, or comes from another host's page. (Starlette's middleware for
    hosts says nothing that helps; Gradio's for origins lets a page of another site send what it likes.)"""
    host, origin = headers.get("host", ""), headers.get("origin")
    if _hostname(f"//{host}") not in hosts:
        names = f"{', '.join(hosts[:-1])} or {hosts[-1]}"
        raise Refusal(421, f"This server answers as {names}, not {host[:80]}: see --allowed-hosts.")
    if origin is not None and _hostname(origin) not in hosts:  # programs send none
        raise Refusal(403, f"This server does not answer pages of {origin[:80]}: see --allowed-hosts.")


def _hostname(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


async def _read(scope: Scope, receive: Receive, most: int, refusal: str) -> bytes:
    """The body. Raises Refusal if it has more than ``most`` bytes, once all are read: a client that is cut off while
    sending misses the answer."""
    size, kept = 0, bytearray()
    async for part in Request(scope, receive).stream():
        size += len(part)
        if size <= most:
            kept += part
    if size > most:
        raise Refusal(413, refusal)
    return bytes(kept)


def _again(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that starts over with ``body``, which was already read."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
