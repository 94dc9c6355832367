"""Starting with the embedded pair, and a run, need no network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.browser.conftest import free_port

ROOT = Path(__file__).parents[1]
WATCHED = """
import json, socket, sys, urllib.request

asked = []
HERE = ("127.0.0.1", "localhost", "::1", None)

def watch(name):
    real = getattr(socket, name)
    def look_up(host, *rest, **options):
        if host not in HERE:
            asked.append(str(host))
            raise OSError("there is no network")
        return real(host, *rest, **options)
    setattr(socket, name, look_up)

for name in ("getaddrinfo", "gethostbyname"):
    watch(name)

class Socket(socket.socket):
    def connect(self, address):
        self._watch(address)
        return super().connect(address)
    def connect_ex(self, address):
        self._watch(address)
        return super().connect_ex(address)
    def sendto(self, data, *rest):
        self._watch(rest[-1])
        return super().sendto(data, *rest)
    def _watch(self, address):
        if isinstance(address, tuple) and address[0] not in HERE:
            asked.append(str(address))
            raise OSError("there is no network")

socket.socket = Socket
port = sys.argv.pop()
import app
from visualize.server import serving
from gradio_client import Client  # as Gradio itself makes one for a call by MCP

def use(*_):
    address = f"http://127.0.0.1:{port}"
    for page in ("", "compare", "lessons", "pool", "memory", "claims", "deploy", "instructor"):
        urllib.request.urlopen(f"{address}/{page}").read()
    client = Client(address, verbose=False)
    answer = json.loads(client.predict("A fox", max_tokens=2, speculative="draft", api_name="/run"))
    client.close()
    try:  # to know that whoever asks is noticed
        urllib.request.urlopen("http://example.com")
    except OSError:
        pass
    print(json.dumps({"asked": asked, "tokens": answer["metrics"]["generated_tokens"]}), flush=True)

serving._wait_for_a_signal = use
app.main(["--port", port])
"""


def started(port: int) -> dict:
    """The hosts that the app asked for, without variables that would keep libraries from asking."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "GRADIO_"))}
    command = [sys.executable, "-c", WATCHED, str(port)]
    done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"asked"')))


def test_start_up_and_a_run_do_not_use_the_network() -> None:
    assert started(free_port()) == {"asked": ["example.com"], "tokens": 2}  # by the test itself
