"""What the app says when it starts, and when it cannot."""

from __future__ import annotations

import signal

import pytest

from tests import forked
from tests.browser.conftest import free_port

pytestmark = pytest.mark.slow

APP = "import runpy\nrunpy.run_path('app.py', run_name='__main__')"


def test_an_address_of_another_machine_is_refused_in_one_sentence() -> None:
    """192.0.2.0/24 is nobody's (RFC 5737)."""
    done = forked.run(APP, "--host", "192.0.2.1", "--port", "7998", "--target", "not looked for yet")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("app.py: cannot listen on 192.0.2.1, port 7998: ")
    assert done.stderr.count("\n") == 1


def test_without_a_folder_for_temporary_files_it_says_what_to_set() -> None:
    done = forked.run(f"import tempfile\ntempfile._get_default_tempdir = lambda: open('/not/there')\n{APP}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "app.py: no folder for temporary files can be written to. Set TMPDIR to one that can.\n"


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
    [
        (signal.SIGINT, AS_SOON_AS_IT_SAYS_WHERE_IT_IS),
        (signal.SIGHUP, WHEN_IT_ANSWERS_AND_HAS_NOT_SAID_SO),  # its terminal was closed
    ],
)
def test_a_signal_right_after_startup_ends_the_server_cleanly(number: signal.Signals, when: str) -> None:
    ignored = number != signal.SIGHUP  # as after nohup
    hangs_up = f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if ignored else 'SIG_DFL'})"
    code = f"import os, signal\nnumber = {int(number)}\n{hangs_up}\n{when}\n{APP}\nprint(repr(signal.getsignal(1)))"
    done = forked.run(code, "--port", str(free_port()))
    assert done.returncode == 0, done.stderr
    assert "Decode Lab is at " in done.stdout
    assert ("SIG_IGN" in done.stdout) is ignored
