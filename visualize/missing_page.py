"""The answer to a browser at an address without a page: which pages there are, and how to start those that are off."""

from html import escape

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from visualize.assets import TITLE
from visualize.page_list import ABOUT, PAGES
from visualize.static_page import WITHIN, document

OFF = {
    "server": (
        "The Server page is off.",
        "It watches a vLLM server. Start the lab again with that server's address:",
        "python app.py --attach http://127.0.0.1:8000",
    ),
    "room": (
        "The Room page is off.",
        "It shows all runs of a workshop. Start the lab again as one:",
        "python app.py --workshop",
    ),
}
"""Pages that only an option of the lab brings: what is said in their place, and the command."""
STYLE = """<style>
:root { color-scheme: light dark; background: Canvas; color: CanvasText; }
a { color: inherit; }
body { max-width: 40rem; margin: 12vh auto 0; padding: 0 1rem; font: 1rem/1.6 system-ui, "DejaVu Sans", sans-serif; }
code { display: block; padding: 0.6rem 0.8rem; overflow-x: auto; border: 1px solid; border-radius: 6px; }
nav { display: flex; flex-wrap: wrap; gap: 0.2rem 0.4rem; }
nav a { display: inline-block; min-height: 44px; padding: 8px; box-sizing: border-box; }
</style>"""


def missing(request: Request, error: HTTPException) -> Response:
    """The answer where nothing is: a page for a browser, and for a program the detail in JSON."""
    if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
        return JSONResponse({"detail": error.detail}, error.status_code, error.headers)
    path = request.url.path.strip("/")
    said = OFF.get(path)
    title, how, command = said or ("There is no page at this address.", "These are the pages of this lab:", "")
    up = "../" * path.count("/")
    links = "".join(f'<a href="{up}{href}" title="{escape(ABOUT[name])}">{name}</a>' for name, href in PAGES.items())
    body = f"<h1>{title}</h1>\n<p>{how}</p>\n"
    body += f"<code>{escape(command)}</code>\n<p>The pages that are there:</p>\n" if command else ""
    page = document(
        f"{title} · {TITLE}", title, STYLE, f"<main>{body}<nav aria-label='Pages'>{links}</nav></main>", WITHIN
    )
    return HTMLResponse(page, error.status_code)
