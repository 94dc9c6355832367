"""Assembles the pages' files, for the server and for what is exported.

All text of a run reaches a page as text: the template is constant, and everything drawn goes
through ``textContent``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly

from visualize.states import css_variables

ROOT = Path(__file__).parent
STATIC = ROOT / "static"
PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
"""The plotly.js that plotly.py ships, so that nothing is fetched from elsewhere."""
CHARTS = f"charts/{plotly.__version__}/{PLOTLY.name}"
"""Where the server has it, relative to every page. It changes with the script."""
TITLE = "Decode Lab"


def header(about: str, links: str = "") -> str:
    """The header of every page; ``header.js`` brings it to life."""
    return f"""
<header class="lab-header">
  <h1>{TITLE}</h1>
  {links}
  <p>{about}</p>
  <span id="device"></span>
  <button id="link" class="copy" type="button" title="Copy the address of this page as it is" hidden>Copy link</button>
  <button id="look" type="button" aria-label="Switch between light and dark" title="Light or dark">◐</button>
</header>
"""


def put_together(setup: Mapping[str, Any], parts: Sequence[str]) -> str:
    """A script of these parts, preceded by ``setup`` and by ``dom.js``, which all of them use."""
    told = f"const setup = {json.dumps({'plotly': CHARTS, **setup})};"
    return "\n".join([told, *(read(f"{part}.js") for part in ("static/dom", *parts))])


def as_part(body: str) -> str:
    """A script as ``exported.js`` mounts it: Gradio wraps the same body in a function of its own."""
    return f"function (element, props, trigger, server, watch) {{\n{body}\n}}"


def styles(*names: str) -> str:
    """The style sheets of those names, with the colours of states before them."""
    return css_variables() + "".join(read(f"{name}.css") for name in names)


def read(name: str) -> str:
    """A file of this folder, as ``static/stage.html`` or ``pages/pool/page.js``, with the files that it names in
    comments included. No template has placeholders for values, because Gradio would evaluate them."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.sub(r"<!-- ([\w/]+\.html) -->", lambda found: read(found[1]), text)
