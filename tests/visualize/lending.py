"""What lends a ZeroGPU Space its GPU: an API beside the app, as ``spaces`` 0.51 asks it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

LENT = {"nvidiaIndex": 0, "nvidiaUUID": "GPU-0", "allowToken": "lent"}
SPENT = {"left": 5, "wait": 3600}
"""What is left of a visitor's quota, in seconds, and when there is more."""
WAIT = 3.0
"""Seconds for which a GPU is waited for, if it is."""


class Lender(ThreadingHTTPServer):
    """``asked``: the path of every request."""

    daemon_threads = True

    def __init__(self, answers: Sequence[str]) -> None:
        self.asked: list[str] = []
        self.answers = answers
        super().__init__(("127.0.0.1", 0), Answers)

    @property
    def variables(self) -> dict[str, str]:
        """Those that such a Space sets."""
        return {"SPACES_ZERO_GPU": "true", "SPACES_ZERO_DEVICE_API_URL": f"http://127.0.0.1:{self.server_port}"}


class Answers(BaseHTTPRequestHandler):
    server: Lender

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        self.server.asked.append(path)
        times = self.server.asked.count("/schedule")
        how = self.server.answers[min(times, len(self.server.answers)) - 1] if path == "/schedule" else ""
        lent = LENT | {"idle": times > 1}  # idle: the process that had it before is still there
        if how == "waits":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"event: ping\n\n")
            time.sleep(WAIT)
            self.wfile.write(f"event: succeeded\ndata: {json.dumps(lent)}\n\n".encode())
            return
        body = json.dumps({"lends": lent, "refuses": SPENT}.get(how, {})).encode()
        self.send_response(429 if how == "refuses" else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def lending(*answers: str) -> Iterator[Lender]:
    """A lender that is there until the end. ``answers``: to those who ask for a GPU, one after the other; the last one
    to all that follow. "refuses": the visitor's quota is spent; "waits": there is none at first; "lends".
    """
    with Lender(answers or ["lends"]) as lender:
        threading.Thread(target=lender.serve_forever, daemon=True).start()
        yield lender
        lender.shutdown()
