"""The lab's source is readable where it runs: its documents with links that lead somewhere, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from visualize import own_files
from visualize.own_files import ROUTE


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(Starlette(routes=[ROUTE]))


def test_every_link_of_a_document_leads_somewhere(client: TestClient) -> None:
    seen, coming = set(), ["/source/", "/source/lab/engine/", "/source/README.md"]
    while coming:
        seen.add(at := coming.pop())
        answer = client.get(at)
        assert answer.status_code == 200, at
        if at.endswith(".md") or len(seen) == 1:
            found = {answer.url.join(href).path for href in re.findall(r'href="([^"#:]+)["#]', answer.text)}
            coming += sorted(one for one in found - seen - {*coming} if one.startswith("/source/"))
    assert {"/source/docs/pages.md", "/source/lab/engine/core.py", "/source/docs/running.webp"} <= seen


@pytest.mark.parametrize(
    "path",
    [".git/config", "docs/../.git/config", "secret.txt", "/etc/passwd", "lab/nothing.py", "a\0b"],
)
def test_nothing_else_is_given_out(client: TestClient, path: str) -> None:
    assert client.get(f"/source/{path.replace(chr(0), '%00')}").status_code == 404


def test_what_a_link_on_the_disk_leads_to_is_not_given_out(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "lab"
    (root / "docs").mkdir(parents=True)
    (tmp_path / "secret.md").write_text("hidden")
    (root / "docs" / "link.md").symlink_to(tmp_path / "secret.md")
    monkeypatch.setattr(own_files, "ROOT", root)
    assert client.get("/source/docs/link.md").status_code == 404
