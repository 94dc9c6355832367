"""A whole HTML page that needs no server: it may load only what is in it or lies beside it."""

from __future__ import annotations

import html

WITHIN = "script-src 'unsafe-inline'; style-src 'unsafe-inline'"
BESIDE = "script-src 'self' file:; style-src 'self' file: 'unsafe-inline'"
"""Where scripts and style sheets may come from: the page itself, or files beside it, also when opened from a disk.
Plotly sets inline styles, so those are allowed in either case."""


def document(title: str, head: str, body: str, allowed: str) -> str:
    """The page.

    Args:
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
<title>{html.escape(title)}</title>
{head}
</head>
<body>
{body}
</body>
</html>
"""
