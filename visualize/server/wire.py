"""What pages and streams take on the wire: compressed.

Gradio compresses files by the ending of their address: scripts and styles, but no page, whose address has no ending,
and no stream.
"""

from __future__ import annotations

from starlette.middleware import Middleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware

LEVEL = 5
"""Of compression: a third of the time that the highest level takes, for a tenth more bytes."""
STREAMS = Middleware(GZipMiddleware, compresslevel=LEVEL, exclude_content_types=())
"""Compresses a stream, and holds back no part of it."""
ANSWERS = Middleware(
    GZipMiddleware,
    compresslevel=LEVEL,
    exclude_content_types=(*DEFAULT_EXCLUDED_CONTENT_TYPES, "text/javascript", "application/javascript", "text/css"),
)
"""Compresses pages and other answers, but none that Gradio compresses better."""
