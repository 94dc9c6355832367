"""What the pages' HTML has before Gradio's scripts run: each page its own title and a line about it, its own address,
``unloaded.js``, ``presence.js`` and ``answers.js``.

Gradio's says of every page of every app that it is Gradio, and "Click to try out the app!", which is then what a chat
shows under a link to a run.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from gradio.routes import templates
from jinja2 import FunctionLoader
from markupsafe import Markup

from visualize.assets import TITLE, read
from visualize.page_list import ABOUT
from visualize.static_page import introduction

GRADIOS = re.compile(r'<meta\s+(?:property|name)="(?:og|twitter):[^>]*>\s*')
BEGIN = '<meta charset="utf-8" />'
CONFIG = "window.gradio_config = {{ config | toorjson }};"
ROOT = "{{ config.get('root', '') | toorjson }}"
SELF_ROOTED = ' gradio_config.root = document.baseURI.replace(/\\/$/, "");'
"""Where the lab is, by the page's own address. Gradio works that out from what the server is told, which behind a proxy
may be another host, another scheme, or not the path."""


@functools.cache  # once is enough
def introduce_pages() -> None:
    """Change Gradio's templates of a page."""
    load = templates.env.loader.get_source

    def changed(name: str) -> str:
        source, _, _ = load(templates.env, name)
        source = source.replace(CONFIG, CONFIG + SELF_ROOTED).replace(ROOT, "gradio_config.root")
        return GRADIOS.sub("", source).replace(BEGIN, f"{BEGIN}\n{{{{ config | introduced }}}}", 1)

    templates.env.filters["introduced"] = _introduced
    templates.env.loader = FunctionLoader(changed)


def _introduced(config: dict[str, Any]) -> Markup:
    """The introduction of the page that ``config`` is of. Gradio's script takes its title from there."""
    name = config["current_page"].capitalize() or "Lab"
    if name != "Lab":
        config["title"] = f"{name} · {TITLE}"
    scripts = "".join(
        f"<script>{read(f'static/{script}')}</script>" for script in ("unloaded.js", "presence.js", "answers.js")
    )
    return Markup(f"{introduction(config['title'], ABOUT[name])}\n{scripts}")
