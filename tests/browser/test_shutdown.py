"""A server that is asked to end."""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.browser.conftest import Lab, started

Visit = Callable[..., Lab]


def asked(address: str) -> str:
    return urllib.request.urlopen(address, timeout=10).read().decode()


def test_it_tells_of_itself_and_ends_what_is_under_way(visit: Visit, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with started(log) as (address, app):
        lab = visit()
        lab.server = address
        lab.open(kv_format="auto", speculation="off", cache=0, max_tokens=1000)
        lab.run()
        lab.wait_for_tokens(5)
        assert json.loads(asked(f"{address}/health")) == {"status": "ok", "models": ["Matched"]}
        told = asked(f"{address}/metrics")
        assert 'vllm:num_requests_running{model_name="Matched"} 1.0' in told
        assert "decode_lab:visits 1.0" in told
        app.send_signal(signal.SIGTERM)
        lab.page.wait_for_selector(".say.problem:has-text('The server is being shut down.')", timeout=10_000)
        assert lab.page.locator(".token:not(.prompt)").count() >= 5
        assert app.wait(20) == 0
        lab.page.close()  # which looks for its server again and again
    assert "Traceback" not in log.read_text(), log.read_text()
