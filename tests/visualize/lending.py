"""What lends a ZeroGPU Space its GPU: an API beside the app, as ``spaces`` 0.51 asks it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

LENT = {"nvidiaIndex": 0, "nvidiaUUID": "GPU-0", "allowToken": "lent"}
SPENT = {"left": 5, "wait": 3600}
"""What is left of a visitor's quota, in seconds, and when there is more."""


class Lender(ThreadingHTTPServer):
    """``asked``: the path of every request."""

    daemon_threads = True

    def __init__(self, lends: int) -> None:
        self.asked: list[str] = []
        self.lends = lends
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
        lends = times <= self.server.lends
        answer = LENT | {"idle": times > 1} if lends else SPENT  # idle: the process that had it before is still there
        body = json.dumps(answer if path == "/schedule" else {}).encode()
        self.send_response(200 if lends else 429)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def lending(lends: int = 100) -> Iterator[Lender]:
    """A lender that is there until the end. ``lends``: so many times; then the visitor's quota is spent."""
    with Lender(lends) as lender:
        threading.Thread(target=lender.serve_forever, daemon=True).start()
        yield lender
        lender.shutdown()
