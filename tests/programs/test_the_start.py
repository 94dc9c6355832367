"""What the app says when it starts, and when it cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.browser.conftest import started

ROOT = Path(__file__).parents[2]


def test_an_address_that_this_machine_has_not_is_one_sentence() -> None:
    """192.0.2.0/24 is nobody's (RFC 5737)."""
    command = [sys.executable, "app.py", "--host", "192.0.2.1", "--port", "7998"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("app.py: nothing can be served at 192.0.2.1, port 7998: ")
    assert done.stderr.count("\n") == 1


def test_it_says_where_it_is_and_nothing_of_how_gradio_is_called(tmp_path: Path) -> None:
    with started(tmp_path / "log.txt") as (address, _):
        pass  # it has said all when it has ended
    said = (tmp_path / "log.txt").read_text()
    assert f"Decode Lab is at {address}\n" in said
    assert "launch()" not in said
