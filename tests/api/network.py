"""The network, as seen by a process that is to do without: whom it asks for is written down, and nobody answers.

For ``sitecustomize``, which Python imports at its start, in the processes that one starts, too. The tests themselves do
not import it.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

HERE = ("127.0.0.1", "localhost", "::1", None)


def refuse(host: object) -> None:
    if host not in HERE:
        with open(os.environ["ASKED"], "a") as file:
            file.write(json.dumps(str(host)) + "\n")
        raise OSError("there is no network")


def watch(name: str) -> None:
    real = getattr(socket, name)

    def look_up(host: object, *rest: Any, **options: Any) -> Any:
        refuse(host)
        return real(host, *rest, **options)

    setattr(socket, name, look_up)


for name in ("getaddrinfo", "gethostbyname"):
    watch(name)


class Socket(socket.socket):
    def connect(self, address: Any) -> None:
        self._watch(address)
        return super().connect(address)

    def connect_ex(self, address: Any) -> int:
        self._watch(address)
        return super().connect_ex(address)

    def sendto(self, data: Any, *rest: Any) -> int:
        self._watch(rest[-1])
        return super().sendto(data, *rest)

    def _watch(self, address: Any) -> None:
        if isinstance(address, tuple):
            refuse(address[0])


socket.socket = Socket
