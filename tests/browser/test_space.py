"""The app as a Hugging Face Space starts it: configured by environment variables alone."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.conftest import ROOT, Lab, started

SPACE = {
    "SYSTEM": "spaces",
    "SPACE_ID": "someone/decode-lab",
    "SPACE_AUTHOR_NAME": "someone",
    "SPACE_REPO_NAME": "decode-lab",
    "SPACE_TITLE": "Decode Lab",
    "SPACE_HOST": "someone-decode-lab.example",
    "SPACE_CREATOR_USER_ID": "0",
    "CPU_CORES": "2",
    "MEMORY": "16Gi",
    "GRADIO_SERVER_NAME": "0.0.0.0",
}


def test_on_a_space_a_visitor_can_run_only_the_listed_pairs(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SPACE.items():
        monkeypatch.setenv(name, value)
    log = tmp_path / "log.txt"
    with started(log) as (address, _):
        page = browser.new_page()  # not ``visit``: for a Space, Gradio requests things from other hosts
        lab = Lab(page, address).open(max_tokens=8)
        pairs = page.eval_on_selector_all("#pair label", "all => all.map(label => label.textContent.trim())")
        assert pairs == ["Matched", "Mismatched"]  # a visitor may name no folder or hub id
        lab.run()
        lab.finish()
        assert lab.seen()["say"].startswith("Finished")
        urllib.request.urlopen(f"{address}/health", timeout=10).close()
        page.close()
        # Only lines about this project count: Gradio's reloader leaves an event loop open and logs that.
        assert str(ROOT) not in log.read_text(), log.read_text()
