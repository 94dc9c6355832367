"""Shutting down, reconnecting, and failing to start."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import ROOT, forking, serving
from tests.browser.pages import ENDLESS, UNREACHED, Visit


def asked(address: str) -> str:
    return urllib.request.urlopen(address, timeout=10).read().decode()


def test_a_server_reports_metrics_ends_runs_on_sigterm_and_is_reconnected_to(troubled: Visit, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    lost = "text=Attempting reconnection"
    with forking(log) as (address, app):
        lab = troubled(address).open(**ENDLESS | {"max_tokens": 1000})
        lab.run()
        lab.wait_for_tokens(5)
        assert json.loads(asked(f"{address}/health")) == {"status": "ok", "models": ["Matched"]}
        reported = asked(f"{address}/metrics")
        assert 'vllm:num_requests_running{model_name="Matched"} 1.0' in reported
        assert "decode_lab:visits 1.0" in reported
        app.terminate()
        expect(lab.problem).to_contain_text("server")
        assert lab.written.count() >= 5
        app.join(60)
        assert app.exitcode == 0
        lab.press("Control+Enter")
        lab.page.wait_for_selector(lost)
    with forking(log, port=int(address.rpartition(":")[2])) as (_, app):
        lab.page.wait_for_selector(lost, state="detached")
        expect(lab.page.locator(".lab-header p")).to_have_class("told")  # that the page was loaded again
        lab.ready().run()
        lab.wait_for_tokens(5)
        app.kill()
        expect(lab.say).to_contain_text(UNREACHED)
        lab.page.close()
    assert "Traceback" not in log.read_text(), log.read_text()


def test_it_listens_on_an_ipv6_address_and_ignores_proxies(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    log = tmp_path / "log.txt"
    proxy = dict.fromkeys(("HTTP_PROXY", "http_proxy"), "http://127.0.0.1:9")
    named = ("--allowed-hosts", "lab.example.org")
    with serving(log, "--workshop", "--host", "[::]", *named, host="[::1]", **proxy) as address:
        assert json.loads(asked(f"{address}/health"))["status"] == "ok"
        until = time.monotonic() + 30
        while "lead from" not in log.read_text() and time.monotonic() < until:
            time.sleep(0.1)
    said = log.read_text()
    assert f"lead from {address}/room#lead=" in said
    assert "/?join=" not in said, "others would be sent to an address that it does not answer to"
    assert "Traceback" not in said, said


def test_a_signal_during_startup_ends_the_server_silently() -> None:
    """While it imports its dependencies, which is most of startup, and before which a GPU not to be used is hidden."""
    number = signal.SIGINT
    begun = (
        "import builtins, os, runpy\n"
        "honest = builtins.__import__\n"
        "def watched(name, *rest, **how):\n"
        "    if name == 'gradio' and os.environ.get('CUDA_VISIBLE_DEVICES') == '':\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "    return honest(name, *rest, **how)\n"
        "builtins.__import__ = watched\n"
        "runpy.run_path('app.py', run_name='__main__')\n"
    )
    command = [sys.executable, "-c", begun, "--device", "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (-number, "", "")  # a shell reports 128 + number
