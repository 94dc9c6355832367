"""What programs are told when the server shuts down. Must run last here: there is no server after it."""

from __future__ import annotations

import signal
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.api.calls import FOREVER, hung_on, inside
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_a_shutdown_is_reported_to_callers_and_uploads_are_deleted(
    app: tuple[str, subprocess.Popen], sent: Path
) -> None:
    server, process = app
    file = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.json"\r\n\r\n{}\r\n--x--\r\n'
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    urllib.request.urlopen(urllib.request.Request(f"{server}/gradio_api/upload", file, kind)).close()
    assert list(sent.rglob("a.json"))
    (folder,) = sent.glob("decode-lab-uploads-*")
    assert folder.stat().st_mode & 0o777 == 0o700, "nobody else on this machine can read it"
    calls = [hung_on(server, "run", FOREVER) for _ in range(3)]
    with ThreadPoolExecutor() as callers:
        answers = [callers.submit(call.read) for call in calls]
        until(lambda: inside(server) == 3)
        process.send_signal(signal.SIGTERM)
        for answer in answers:  # of one call under way, and of two that wait
            assert b"The server is shutting down." in answer.result()
    assert process.wait(30) == 0
    assert not folder.exists()


def test_the_log_has_the_address_and_no_usage_hint_of_gradios(server: str, log: Path) -> None:
    said = log.read_text()
    assert f"Decode Lab is at {server}\n" in said
    assert "launch()" not in said
