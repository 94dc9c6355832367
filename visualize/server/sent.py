"""A file that is sent, taken whole before Gradio sees any of it: Gradio opens a file for each of up to a thousand parts
as they come, and leaves on the disk what broke off."""

from __future__ import annotations

from tempfile import SpooledTemporaryFile

from python_multipart.multipart import parse_options_header
from starlette.requests import Request
from starlette.types import Receive, Scope

from visualize.server.posted import Refusal
from visualize.server.shelf import MAX_RUN_FILE

MOST_BYTES = MAX_RUN_FILE + 2**16
"""Of a request: a run's file, and what a form puts around it."""
IN_MEMORY = 2**20
"""Bytes beyond which what has come waits on the disk: who sends slowly holds no more memory."""


async def read(scope: Scope, receive: Receive) -> bytes:
    """A form with one file in it.

    Raises:
        Refusal: it is larger than a run's file may be, or holds more than one.
        ClientDisconnect: it broke off.
    """
    request, size = Request(scope, receive), 0
    with SpooledTemporaryFile(IN_MEMORY) as kept:
        async for part in request.stream():
            size += len(part)
            if size <= MOST_BYTES:  # as what is posted elsewhere: who is not heard out does not listen either
                kept.write(part)
        if size > MOST_BYTES:
            raise Refusal(413, f"A run's file has at most {MAX_RUN_FILE >> 20} MiB.")
        kept.seek(0)
        body = kept.read()
    # As Gradio reads it: what is read otherwise can be got round.
    _, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary")
    if boundary and body.count(b"--" + boundary) > 2:  # before the one part, and behind it
        raise Refusal(422, "More than one file was sent: send them one by one.")
    return body
