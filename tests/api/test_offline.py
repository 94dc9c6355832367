"""Starting with the embedded pair, its pages and what programs ask for need no network (see the fixture ``app``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.calls import call, get

pytestmark = pytest.mark.slow

PAGES = ("", "compare", "lessons", "pool", "memory", "claims", "mistakes", "deploy", "instructor", "capstone")


def test_the_pages_and_a_run_do_not_use_the_network(server: str, watched: dict[str, str]) -> None:
    assert [get(f"{server}/{page}")[0] for page in PAGES] == [200] * len(PAGES)
    event, answer = call(server, "run", {"prompt": "A fox", "max_tokens": 2, "speculative": "draft"})
    assert event == "complete"
    assert '\\"generated_tokens\\": 2' in answer
    assert Path(watched["ASKED"]).read_text() == ""


def test_whoever_asks_is_noticed(watched: dict[str, str], tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    ask = "import socket, urllib.request\n"
    for how in (
        "urllib.request.urlopen('http://example.com')",
        "socket.create_connection(('192.0.2.1', 80))",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('192.0.2.2', 53))",
    ):
        ask += f"try:\n    {how}\nexcept OSError as error:\n    assert 'there is no network' in str(error), error\n"
    subprocess.run([sys.executable, "-c", ask], env=os.environ | watched | {"ASKED": str(asked)}, check=True)
    assert asked.read_text() == '"example.com"\n"192.0.2.1"\n"192.0.2.2"\n'
