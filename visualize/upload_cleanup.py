"""Uploads, read whole before Gradio sees any of them: Gradio opens a file for each of up to a thousand parts as they
arrive, and leaves those of a broken-off upload on disk."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from tempfile import SpooledTemporaryFile

import gradio as gr
from gradio import route_utils
from python_multipart.multipart import parse_options_header
from starlette.requests import Request
from starlette.types import Receive, Scope

from visualize.jobs.run_store import MAX_RUN_FILE
from visualize.request_bodies import Refusal

MOST_BYTES = MAX_RUN_FILE + 2**16
"""Most bytes of a request: a run's file and the form around it."""
MOST_STORED = 2**30
"""Most bytes of requests in the time for which a file is stored: so many can be on disk."""
A_FILE = 2**12
"""Bytes that even the smallest file takes on disk."""
CHECKED_S, STORED_S = 600, 3600
"""Seconds between checks of the stored files, and seconds for which each stays: it is read as soon as it arrives."""
IN_MEMORY = 2**20
"""Bytes beyond which an upload is spooled to disk, so that a slow sender occupies no more memory than that."""


def keep_deleting() -> None:
    """Have old files deleted for as long as the server runs: any error would end Gradio's deleting for good, and it
    goes through the very set to which uploads add theirs meanwhile. What is left over waits for the next check."""
    once = route_utils.delete_files_created_by_app

    def delete(pages: gr.Blocks, age: int | None) -> None:
        with suppress(RuntimeError, OSError):
            once(pages, age)

    route_utils.delete_files_created_by_app = delete


class Stored:
    """Bounds what is on disk of uploads, which may be of anything and need never be opened."""

    def __init__(self) -> None:
        self._came: deque[tuple[float, int]] = deque()
        self._total = 0

    def admit(self, size: int) -> None:
        """Count a file of so many bytes, which is to be stored. Raises Refusal if there is no room for it."""
        now, size = time.monotonic(), max(size, A_FILE)
        while self._came and now - self._came[0][0] > CHECKED_S + STORED_S:
            self._total -= self._came.popleft()[1]
        if self._total + size > MOST_STORED:
            raise Refusal(507, "Many files were sent to this server lately: it has no room for more. Try again later.")
        self._came.append((now, size))
        self._total += size


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
