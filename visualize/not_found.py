"""What is shown at an address that does not exist."""

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
LOOK = """<style>
:root { color-scheme: light dark; }
body { margin: 0; padding: 22px 20px; font: 15px/1.55 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  background: light-dark(#f3f5f9, #0e1219); color: light-dark(#1d2430, #e8ecf3); overflow-wrap: anywhere; }
main { max-width: 720px; margin: 0 auto; }
h1 { font-size: 19px; }
code { white-space: nowrap; }
nav { display: flex; flex-wrap: wrap; gap: 6px 18px; }
a { color: light-dark(#0072b2, #56b4e9); }
</style>"""


async def absent(request: Request, error: HTTPException) -> Response:
    """The 404 answer: for a browser, a page with links to those that exist; for a program, FastAPI's own."""
    if "text/html" not in request.headers.get("accept", ""):
        return await http_exception_handler(request, error)
    path = request.scope["path"]
    option = OPTIONS.get(path.strip("/"))
    up = "../" * (path.count("/") - 1) or "./"  # a proxy may serve the lab below a path of its own
    why = f"It needs a server started with <code>{option}</code>." if option else "There are these pages:"
    links = "".join(f'<a href="{up}{link.removeprefix("./")}">{name}</a>' for name, link in PAGES.items())
    body = f"<main><h1>There is no {escape(visible(path[:200]))} here</h1><p>{why}</p><nav>{links}</nav></main>"
    return HTMLResponse(document("Nothing here · Decode Lab", "", LOOK, body, WITHIN), 404)
