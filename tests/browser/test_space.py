"""The app as a Hugging Face Space starts it: configured by environment variables alone."""

from __future__ import annotations

import json
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
    "GRADIO_NUM_PORTS": "1",
    "GRADIO_THEME": "huggingface",
    "GRADIO_ALLOW_FLAGGING": "never",
    "TQDM_POSITION": "-1",
    "TQDM_MININTERVAL": "1",
    "PYTHONUNBUFFERED": "1",
    "GRADIO_SSR_MODE": "true",  # its image has Node, which then answers in the server's place
}


def test_on_a_space_a_visitor_can_run_only_the_listed_pairs(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, asked = tmp_path / "node", tmp_path / "asked"
    node.write_text(f"#!/bin/sh\ntouch {asked}\nexit 1\n")
    node.chmod(0o755)
    for name, value in (SPACE | {"GRADIO_NODE_PATH": str(node)}).items():
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
        with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
            assert json.load(answer)["status"] == "ok"
        assert not asked.exists(), "Node knows none of this server's own addresses"
        page.close()
        # Only lines about this project count: Gradio's reloader leaves an event loop open and logs that.
        assert str(ROOT) not in log.read_text(), log.read_text()
