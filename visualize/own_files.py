"""The lab's own files, to read in the browser: documents as pages, code as text, folders as lists. Pages link to them,
since a lab may run where nothing says where its source is published."""

import re
from html import escape
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from visualize.assets import TITLE
from visualize.markdown import to_html
from visualize.missing_page import STYLE
from visualize.static_page import WITHIN, document

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docs", "lab", "lessons", "tests", "visualize")
FILES = {
    *("README.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "app.py", "pyproject.toml", "constraints.txt"),
    *("requirements.txt", "requirements-optional.txt", "requirements-test.txt"),
}
"""What may be read of the root; below it, files with these endings."""
PICTURES = {".png", ".webp"}
TEXTS = {".md", ".py", ".toml", ".js", ".css", ".html", ".c", ".h", ".txt", ".json"}
UNSEEN = re.compile(r"\A---\n.*?\n---\n|<!--.*?-->\n?", re.DOTALL)
"""In a document: what is said to programs."""
READ = """<style>
body { max-width: 60rem; margin-top: 2rem; }
table { border-collapse: collapse; }
td, th { padding: 0.2rem 0.6rem; border: 1px solid; text-align: left; vertical-align: baseline; }
code { display: inline; padding: 0 0.2rem; border: 0; overflow-wrap: anywhere; }
pre { padding: 0.6rem 0.8rem; overflow-x: auto; border: 1px solid; border-radius: 6px; }
</style>"""


def find(path: str) -> Path | None:
    """The file or folder at a path from the root, if anybody may read it; nothing hidden, and nothing that a link leads
    to elsewhere."""
    there = (ROOT / path.replace("\0", "")).resolve()
    if not there.is_relative_to(ROOT) or not there.exists():
        return None
    parts = there.relative_to(ROOT).parts
    if any(part.startswith(".") or part == "__pycache__" for part in parts):
        return None
    below = not parts or (parts[0] in FOLDERS and (there.is_dir() or there.suffix in TEXTS | PICTURES))
    return there if below or "/".join(parts) in FILES else None


def answer(request: Request) -> Response:
    """The file, or the folder's list."""
    path = request.path_params["path"]
    there = find(path)
    if there is None:
        raise HTTPException(404, "The lab has no such file.")
    if there.suffix in PICTURES:
        return FileResponse(there)
    if there.is_file() and there.suffix != ".md":
        return PlainTextResponse(there.read_bytes(), headers={"X-Content-Type-Options": "nosniff"})
    return HTMLResponse(_page(path, there))


def _page(path: str, there: Path) -> str:
    up = "../" * (1 + path.count("/"))
    if there.is_dir():
        folder = there.relative_to(ROOT)
        names = [f"{(folder / it.name).as_posix()}{'/' * it.is_dir()}" for it in sorted(there.iterdir())]
        links = (f'<li><a href="{up}source/{escape(name)}">{escape(name)}</a></li>' for name in names if find(name))
        body = f"<h1>{escape(path or 'The source of this lab')}</h1>\n<ul>{''.join(links)}</ul>"
    else:
        body = to_html(UNSEEN.sub("", there.read_text("utf-8")).replace("![", "["))  # pictures are links
    head = f'<nav aria-label="Places"><a href="{up}">{TITLE}</a><a href="{up}source/">Source</a></nav>'
    title = f"{path or 'Source'} · {TITLE}"
    return document(title, title, STYLE + READ, f"{head}<main>{body}</main>", WITHIN)


ROUTE = Route("/source/{path:path}", answer)
