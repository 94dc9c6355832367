"""A model hub that answers what huggingface_hub requests from folders named owner/name.

It has Xet storage, as far as that is needed for whole files to be fetched (Hugging Face, specification of the Xet
protocol: download protocol, CAS API, xorb format). A file is stored in xorbs, and a xorb in chunks. Real hashes are
made from the chunks' hashes; whoever fetches does not check them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LATE = str(1 << 40)
"""When a token for Xet storage expires, in seconds since 1970."""
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PIECE = 1 << 16
CHUNK = 1 << 16
XORB = 16 * CHUNK


@functools.cache
def key(file: Path) -> str:
    return _hash(file.read_bytes())


class Hub(ThreadingHTTPServer):
    """Args: root: the parent of the folders. gated: models whose owner has to grant access. xet: whether weights are in
    Xet storage, as the real hub's are, and not plain files. seconds: delay before each piece of a file. stalls: whether
    Xet storage keeps those waiting who ask it for parts of a file. refusals: statuses with which files are refused, by
    owner/name/file; "xet": whatever is asked of Xet storage.

    Attributes:
        asked: the paths that were requested.
        sent: how many bytes each piece had that was sent.
    """

    daemon_threads = True

    def __init__(
        self,
        root: Path,
        *,
        gated: tuple[str, ...] = (),
        xet: bool = False,
        seconds: float = 0.0,
        stalls: bool = False,
        refusals: Mapping[str, int] | None = None,
    ) -> None:
        self.root, self.gated, self.xet, self.seconds, self.refusals = root, gated, xet, seconds, refusals or {}
        self.stalls = stalls
        self.asked: list[str] = []
        self.sent: list[int] = []
        super().__init__(("127.0.0.1", 0), _Answers)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def in_xet(self, file: Path) -> bool:
        return self.xet and file.suffix == ".safetensors"

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables for a process that is to use this hub."""
        return {"HF_ENDPOINT": self.address, "HF_HUB_OFFLINE": "0"}


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        if path.startswith(("/xet/", "/v1/reconstructions/")):
            self._answer_from_xet(path)
            return
        asked = re.fullmatch(r"/api/models/([^/]+/[^/]+)(/.*)?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)
        name = asked[1] if asked else file[1] if file else ""
        folder = self.server.root / name
        if not name or not folder.is_dir():
            self._say(404, {"X-Error-Code": "RepoNotFound"})
        elif asked:
            files = [file for file in folder.iterdir() if file.is_file()]
            known = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": file.name} for file in files]}
            tree = [
                {"type": "file", "oid": "0", "size": file.stat().st_size, "path": file.name}
                | ({"xetHash": key(file)} if self.server.in_xet(file) else {})
                for file in files
            ]
            self._say(200, {}, json.dumps(tree if (asked[2] or "").startswith("/tree") else known).encode())
        elif name in self.server.gated:
            self._say(401, {"X-Error-Code": "GatedRepo"})
        elif status := self.server.refusals.get(f"{name}/{file[2]}"):
            self._say(status, {})
        elif not (folder / file[2]).is_file():
            self._say(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        else:
            content = (folder / file[2]).read_bytes()
            known = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            if self.server.in_xet(folder / file[2]):
                known |= {
                    "X-Xet-Hash": key(folder / file[2]),
                    "X-Xet-Refresh-Route": f"{self.server.address}/xet/token",
                }
            self._say(200, known, content)

    def _answer_from_xet(self, path: str) -> None:
        hub = self.server
        if path == "/xet/token":
            token = {"X-Xet-Access-Token": "any", "X-Xet-Token-Expiration": LATE}
            self._say(200, token | {"X-Xet-Cas-Url": hub.address})
            return
        if status := hub.refusals.get("xet"):
            self._say(status, {})
            return
        of, _, number = re.sub("^/xet/|^/v1/reconstructions/", "", path).partition("/")
        content = next(file for file in hub.root.rglob("*.safetensors") if key(file) == of).read_bytes()
        if number:
            time.sleep(3600 if hub.stalls else 0)
            self._say(206, {}, _stored(content, int(number)))
        else:
            self._say(200, {}, json.dumps(_reconstruction(content, f"{hub.address}/xet/{of}")).encode())

    def _say(self, status: int, head: dict[str, str], content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (head | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            with suppress(ConnectionError):  # who asked may have hung up
                for begin in range(0, len(content), PIECE):
                    time.sleep(self.server.seconds)
                    self.server.sent.append(self.wfile.write(content[begin : begin + PIECE]))

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(root: Path, **how: object) -> Iterator[Hub]:
    """Runs a hub until the context ends."""
    hub = Hub(root, **how)
    threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()


def _hash(content: bytes) -> str:
    """By which a file or a xorb is known."""
    return hashlib.sha256(content).hexdigest()


def _reconstruction(content: bytes, at: str) -> dict[str, Any]:
    """How a file is put together. Its xorbs can be had at the address ``at``, by their number."""
    terms, places = [], {}
    for number, xorb in enumerate(_xorbs(content)):
        chunks = list(_chunks(xorb))
        these = {"start": 0, "end": len(chunks)}
        whole = {"start": 0, "end": sum(map(len, chunks)) - 1}
        terms.append({"hash": _hash(xorb), "unpacked_length": len(xorb), "range": these})
        places[_hash(xorb)] = [{"range": these, "url": f"{at}/{number}", "url_range": whole}]
    return {"offset_into_first_range": 0, "terms": terms, "fetch_info": places}


def _stored(content: bytes, number: int) -> bytes:
    """A file's xorb, as it is stored."""
    return b"".join(_chunks(_xorbs(content)[number]))


def _xorbs(content: bytes) -> list[bytes]:
    return [content[begin : begin + XORB] for begin in range(0, len(content), XORB)]


def _chunks(xorb: bytes) -> Iterator[bytes]:
    """Each with its head: version 0, length as it is stored, 0 for not compressed, length."""
    for begin in range(0, len(xorb), CHUNK):
        chunk = xorb[begin : begin + CHUNK]
        length = len(chunk).to_bytes(3, "little")
        yield b"\0" + length + b"\0" + length + chunk
