"""The answer at an address that does not exist."""

from __future__ import annotations

from html import escape

from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from visualize.page_list import PAGES
from visualize.static_page import WITHIN, document
from visualize.text import visible

OPTIONS = {"server": "--attach URL", "room": "--workshop"}
"""Pages that are there only when the server was started with an option."""
LOOK = """<style>:root { color-scheme: light dark; font: 15px/1.55 system-ui, sans-serif; }
body { max-width: 720px; margin: 22px auto; overflow-wrap: anywhere; }</style>"""


async def not_found(request: Request, error: HTTPException) -> Response:
    """For a browser, a page with links to those that exist; for a program, FastAPI's answer."""
    if "text/html" not in request.headers.get("accept", ""):
        return await http_exception_handler(request, error)
    path = request.scope["path"]
    option = OPTIONS.get(path.strip("/"))
    up = "../" * (path.count("/") - 1) or "./"  # a proxy may serve the lab below a path of its own
    why = f"It needs a server started with <code>{option}</code>." if option else "There are these pages:"
    links = " · ".join(f'<a href="{up}{link.removeprefix("./")}">{name}</a>' for name, link in PAGES.items())
    body = f"<h1>There is no {escape(visible(path[:200]))} here</h1><p>{why}</p><nav>{links}</nav>"
    return HTMLResponse(document("Nothing here · Decode Lab", "", LOOK, body, WITHIN), 404)
