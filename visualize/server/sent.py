"""Uploads, read whole before Gradio sees any of them: Gradio opens a file for each of up to a thousand parts as they
arrive, and leaves those of a broken-off upload on disk."""

from __future__ import annotations

from tempfile import SpooledTemporaryFile

from python_multipart.multipart import parse_options_header
from starlette.requests import Request
from starlette.types import Receive, Scope

from visualize.server.posted import Refusal
from visualize.server.shelf import MAX_RUN_FILE

MOST_BYTES = MAX_RUN_FILE + 2**16
"""Most bytes of a request: a run's file and the form around it."""
IN_MEMORY = 2**20
"""Bytes beyond which an upload is spooled to disk, so that a slow sender occupies no more memory than that."""


async def read(scope: Scope, receive: Receive) -> bytes:
    """A form with one file in it.

    Raises:
        Refusal: it is larger than a run's file may be, or has more than one file.
        ClientDisconnect: the upload broke off.
    """
    request, size = Request(scope, receive), 0
    with SpooledTemporaryFile(IN_MEMORY) as kept:
        async for part in request.stream():
            size += len(part)
            if size <= MOST_BYTES:  # the rest is read too: a client cut off while sending misses the answer
                kept.write(part)
        if size > MOST_BYTES:
            raise Refusal(413, f"A run's file has at most {MAX_RUN_FILE >> 20} MiB.")
        kept.seek(0)
        body = kept.read()
    # Parsed as Gradio parses it: a check that read it differently could be bypassed.
    _, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if boundary and body.count(b"--" + boundary) > 2:  # one before the only part, one after it
        raise Refusal(422, "More than one file was sent: send them one by one.")
    return body
