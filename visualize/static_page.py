"""A whole HTML page that needs no server: it may load only what is in it or lies beside it."""

import html
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from visualize.assets import TITLE, bundle, read
from visualize.charts import CHARTS, timing_chart, verdict_chart
from visualize.charts.base import looks, shells
from visualize.reduce.metric_cards import labels
from visualize.states import as_json

WITHIN = "script-src 'unsafe-inline'; style-src 'unsafe-inline'"
BESIDE = "script-src 'self' file:; style-src 'self' file: 'unsafe-inline'"
"""Where scripts and style sheets may come from: the page itself, or files beside it, also when opened from a disk.
Plotly sets inline styles, so those are allowed in either case."""


def introduction(title: str, about: str) -> str:
    """A page's title and a line about it, for the head: what a browser's tab, a search and whatever shows more of a
    shared link than its address say of the page. And its icon."""
    named, reported = html.escape(title), html.escape(about)
    return f"""<title>{named}</title>
<meta name="description" content="{reported}">
<meta property="og:site_name" content="{TITLE}">
<meta property="og:type" content="website">
<meta property="og:title" content="{named}">
<meta property="og:description" content="{reported}">
<meta name="twitter:card" content="summary">
<link rel="icon" href="data:image/svg+xml,{quote(read("static/icon.svg"))}">"""


def document(title: str, about: str, head: str, body: str, allowed: str) -> str:
    """The page.

    Args:
        title, about: see ``introduction``.
        head, body: markup, with every text in it escaped.
        allowed: where its scripts and style sheets come from, ``WITHIN`` or ``BESIDE``. The page's policy forbids
            loading anything from elsewhere and sending anything.
    """
    policy = f"default-src 'none'; {allowed}; img-src data: blob:"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
{introduction(title, about)}
{head}
</head>
<body>
{body}
</body>
</html>
"""


def script(*entries: str) -> str:
    """The script of a page without a server: these modules, out of which ``exported.js`` mounts components."""
    return f"{bundle(*entries)}{read('export/exported.js')}"


def component(name: str, module: str, setup: Mapping[str, Any]) -> str:
    """A line of script that names a component for ``mount``."""
    return f'components.{name} = ["{module}", {json.dumps(setup)}];\n'


def stage() -> str:
    """The same for the stage of a run."""
    return component("stage", "static/run_page.js", stage_setup())


def stage_setup() -> dict[str, Any]:
    """The setup of the stage of a run. Colours and empty figures are not a prop, because Gradio copies and compares
    every prop at every update."""
    return {
        "vocabulary": as_json(),
        "shells": shells(CHARTS, start=True),
        "verdict": looks(verdict_chart.figure),
        "rolling": ["rounds", "timing"],
        "parts": {"light": timing_chart.part_colours(False), "dark": timing_chart.part_colours(True)},
        "readouts": labels(),
    }
