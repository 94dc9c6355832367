"""The app as a Hugging Face Space starts it: configured by environment variables alone."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import ROOT, started
from tests.browser.pages import PAIRS, Lab, Visit, asked

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


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an app that runs on a Space, as far as it can tell."""
    folder = tmp_path_factory.mktemp("space")
    node, asked, log = folder / "node", folder / "asked", folder / "log.txt"
    node.write_text(f"#!/bin/sh\ntouch {asked}\nexit 1\n")
    node.chmod(0o755)
    with started(log, **SPACE, GRADIO_NODE_PATH=str(node)) as (address, _):
        yield address
    assert not asked.exists(), "Node knows none of this server's own addresses"
    # Only lines about this project count: Gradio's reloader leaves an event loop open and logs that.
    own = [line for line in log.read_text().splitlines() if str(ROOT) in line and "site-packages" not in line]
    assert own == [], log.read_text()


def test_on_a_space_a_visitor_can_run_only_the_listed_pairs(troubled: Visit, space: str) -> None:
    page = troubled().page
    lab = Lab(page, space).open(max_tokens=8)
    pairs = page.eval_on_selector_all("#pair label", "all => all.map(label => label.textContent.trim())")
    assert pairs == [PAIRS[name] for name in ("matched", "mismatched")]  # a visitor may name no folder or hub id
    lab.ran()
    lab.came_to_its_end(8)
    assert page.locator("p[role=alert]").count() == 0, "nothing of the lab's own is missing"
    with urllib.request.urlopen(f"{space}/health", timeout=10) as answer:
        assert json.load(answer)["status"] == "ok"


def test_inside_another_page_a_link_to_what_is_shown_can_be_copied(troubled: Visit, space: str, server: str) -> None:
    """A Space's page shows the app in a frame, whose address nobody sees. A private Space's has a key in it."""
    page = troubled(permissions=["clipboard-read", "clipboard-write"]).page
    page.goto(f"{server.replace('127.0.0.1', 'localhost')}/health")  # any page of another host
    html = f'<iframe src="{space}/compare?__sign=secret" allow="clipboard-write" width=1200 height=700>'
    page.evaluate("html => (document.body.innerHTML = html)", html)
    frame = page.frame_locator("iframe")
    frame.locator("body[data-ready]").wait_for(timeout=60_000)
    frame.locator("#lanes label:has(input[name=draft-4])").click()
    link = frame.locator("#link")
    before = link.inner_text()
    link.click()
    expect(link).not_to_have_text(before)
    copied = frame.locator("#link + .address").text_content()
    assert copied.startswith(f"{space}/compare?")
    assert "secret" not in copied
    expect(link).to_have_text(before)
    assert len(asked(copied)["lanes"].split(",")) == 4
