"""What the app says when it starts, and when it cannot."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.conftest import free_port

ROOT = Path(__file__).parents[2]


def test_an_address_of_another_machine_is_refused_in_one_sentence() -> None:
    """192.0.2.0/24 is nobody's (RFC 5737)."""
    command = [sys.executable, "app.py", "--host", "192.0.2.1", "--port", "7998", "--target", "not looked for yet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("app.py: cannot listen on 192.0.2.1, port 7998: ")
    assert done.stderr.count("\n") == 1


AS_SOON_AS_IT_SAYS_WHERE_IT_IS = """
import builtins
honest = builtins.print
def ended(*said, **how):
    honest(*said, **how)
    if said[0].startswith("Decode Lab is at "):
        os.kill(os.getpid(), number)
builtins.print = ended
"""
WHEN_IT_ANSWERS_AND_HAS_NOT_SAID_SO = """
import httpx  # with which Gradio asks its own server something before it goes on
honest = httpx.Client.request
def asking(*what, **how):
    answer = honest(*what, **how)
    os.kill(os.getpid(), number)
    return answer
httpx.Client.request = asking
"""


@pytest.mark.parametrize(
    ("number", "when"),
    [(signal.SIGINT, AS_SOON_AS_IT_SAYS_WHERE_IT_IS), (signal.SIGTERM, WHEN_IT_ANSWERS_AND_HAS_NOT_SAID_SO)],
)
def test_a_signal_right_after_startup_ends_the_server_cleanly(number: signal.Signals, when: str) -> None:
    ended = f"import os, runpy\nnumber = {int(number)}\n{when}\nrunpy.run_path('app.py', run_name='__main__')"
    command = [sys.executable, "-c", ended, "--port", str(free_port())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Decode Lab is at " in done.stdout
