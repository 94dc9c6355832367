"""The pages' files. The server has their scripts as modules; an exported page has them as one script.

All text of a run reaches a page as text: the template is constant, and everything drawn goes
through ``textContent``.
"""

import functools
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from visualize.states import css_variables

ROOT = Path(__file__).parent
STATIC = ROOT / "static"
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
"""The plotly.js that plotly.py ships, so that nothing is fetched from elsewhere."""
CHARTS = f"charts/{plotly.__version__}/{PLOTLY.name}"
"""Where the server has it, relative to every page. It changes with the script."""
FOR_EVER = "public, max-age=31536000, immutable"
"""How long browsers may keep what has an address that changes with it."""
TITLE = "Decode Lab"
IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "(\.[\w./]+)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
CHART = re.compile(r"<!-- chart (\w+): ([^|\n]+) \| ([^|\n]+?)(?: \| ([^|\n]+))? -->")
"""In a template, a chart's place: its name, title and caption, and what is said below it."""
FIRST = ("static/header.js", "static/run_page.js", "static/announce.js")
"""Modules that most pages begin with."""


def header(about: str, links: str = "") -> str:
    """The header of every page; ``header.js`` brings it to life."""
    return f"""
<header class="lab-header">
  <button class="skip" type="button" data-to="#run:not(:disabled), .check-all" hidden>Skip to Run</button>
  <button class="skip" type="button" data-to="#view, main, .claims" hidden>Skip to the content</button>
  <h1>{TITLE}</h1>
  {links}
  <p>{about}</p>
  <span id="device"></span>
  <button id="link" class="copy" type="button" title="Copy the address of this page as it is" hidden>Copy link</button>
  <button id="present" class="sign" type="button" aria-label="Presentation" title="Large, for a projector (P)" hidden>
    <svg viewBox="0 0 16 16" aria-hidden="true"><path d="M1.5 2.5h13v8.5h-13zM8 11v3M5 14h6"/></svg>
  </button>
  <button id="help" class="sign" type="button" aria-label="Help" title="Help and keys (?)" hidden>?</button>
  <button id="look" class="sign" type="button" aria-label="Light or dark" title="Light or dark">◐</button>
</header>
"""


@functools.cache
def read(name: str) -> str:
    """A file of this folder, as ``static/stage.html`` or ``pages/pool/page.js``, with the files and charts that its
    comments name. No template has placeholders for values, because Gradio would evaluate them."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"<!-- ([\w/]+\.html) -->", lambda found: read(found[1]), CHART.sub(_figure, text))


def _figure(found: re.Match[str]) -> str:
    name, title, caption, key = found.groups()
    return f"""<figure class="panel" data-chart="{name}">
  <figcaption class="panel-head"><h2>{title}</h2><span class="caption">{caption}</span></figcaption>
  <div class="plot"></div>
  {f'<p class="key">{key}</p>' if key else ""}
</figure>"""


def styles(*names: str) -> str:
    """The style sheets of those names, with the colours of states before them."""
    return css_variables() + "".join(read(f"{name}.css") for name in names)


@functools.cache
def modules() -> Mapping[str, str]:
    """The text of every module of the pages, by its path."""
    files = [*STATIC.glob("*.js"), *ROOT.glob("pages/*/*.js")]
    return {path: read(path) for path in sorted(file.relative_to(ROOT).as_posix() for file in files)}


@functools.cache
def module_folder() -> str:
    """The address of the modules, relative to every page. It changes with each of them."""
    return f"modules/{hashlib.sha256(json.dumps(modules()).encode()).hexdigest()[:12]}"


def loader(module: str, setup: Mapping[str, Any]) -> str:
    """The script of a component: it imports a module and has it ``mount`` the component, which starts with ``setup``.
    What fails to load is treated as Gradio's own (``unloaded.js``)."""
    return f"""import(new URL("{module_folder()}/{module}", document.baseURI)).catch((error) => {{
  dispatchEvent(Object.assign(new Event("vite:preloadError"), {{ payload: error }}));
  throw error;
}}).then(({{ mount }}) => mount(element, {{ props, trigger, server, watch }}, {json.dumps(setup)}));"""


def with_imports(*entries: str) -> list[str]:
    """These modules and all that they import, each after what it imports itself."""
    found: dict[str, None] = {}
    for module in entries:
        used = [_beside(module, path) for _, path in IMPORT.findall(modules()[module])]
        found |= dict.fromkeys([*with_imports(*used), module])
    return list(found)


def bundle(*entries: str) -> str:
    """One script with these modules and all that they import: a page that is opened from a disk can load no modules.
    ``bundle["static/dom.js"]`` has what that module exports."""
    parts = ['"use strict";\nconst bundle = {};']
    for module in with_imports(*entries):
        text = modules()[module]
        names = ", ".join(EXPORT.findall(text))
        code = IMPORT.sub(lambda found, at=module: f'const {{ {found[1]} }} = bundle["{_beside(at, found[2])}"];', text)
        parts.append(f'bundle["{module}"] = (() => {{\n{EXPORT.sub("", code)}return {{ {names} }};\n}})();')
    return "\n".join(parts) + "\n"


def _beside(module: str, path: str) -> str:
    return posixpath.normpath(f"{posixpath.dirname(module)}/{path}")


def head_links() -> str:
    """For the head of every page: where charts are drawn from, and what to fetch before it is asked for."""
    links = [f'<link rel="modulepreload" href="{module_folder()}/{module}">' for module in with_imports(*FIRST)]
    return "\n".join([f'<meta name="plotly" content="{CHARTS}">', *links])


def _module(request: Request) -> Response:
    path = request.path_params["path"]
    if request.path_params["version"] != module_folder().rpartition("/")[2] or path not in modules():
        return PlainTextResponse("There is no such module. Load the page again.", 404)
    return Response(modules()[path], media_type="text/javascript", headers={"Cache-Control": FOR_EVER})


def _charts(request: Request) -> Response:
    return FileResponse(PLOTLY, media_type="text/javascript", headers={"Cache-Control": FOR_EVER})


ROUTES = [Route("/modules/{version}/{path:path}", _module), Route(f"/{CHARTS}", _charts)]
"""Where pages fetch their modules, and the script that draws charts: three quarters of a first visit's bytes."""
