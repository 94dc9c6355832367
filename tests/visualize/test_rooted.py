"""A proxy's path is taken off a request's before anything looks at it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.coroutines import complete
from visualize.root_path import Rooted


def passed_on(scope: dict[str, Any]) -> dict[str, Any]:
    """The scope that an app behind it gets."""
    seen: list[dict[str, Any]] = []

    async def app(scope: dict[str, Any], receive: object, send: object) -> None:
        seen.append(scope)

    complete(Rooted(app)(scope, None, None))
    return seen[0]


@pytest.mark.parametrize(
    ("root", "path", "left"),
    [
        ("", "/compare", "/compare"),
        ("/lab", "/lab/compare", "/compare"),
        ("/lab/", "/lab/", "/"),
        ("/lab/", "/lab/compare", "/compare"),
        ("/", "/compare", "/compare"),
        ("/lab", "/lab", "/"),
        ("/lab", "/compare", "/compare"),  # by a proxy that takes it off
        ("/lab", "/laboratory", "/laboratory"),
        ("/lab", "/lab/lab/compare", "/lab/compare"),  # once
        ("https://example.org/my/lab", "/my/lab/gradio_api/info", "/gradio_api/info"),
        ("https://example.org", "/compare", "/compare"),
    ],
)
def test_the_path_is_taken_off_once(root: str, path: str, left: str) -> None:
    got = passed_on({"type": "http", "path": path, "root_path": root})
    assert got["path"] == left
    if left != path:
        assert got["root_path"] == "", "otherwise routes would take it off again"


def test_a_servers_start_has_no_path() -> None:
    assert passed_on({"type": "lifespan", "root_path": "/lab"}) == {"type": "lifespan", "root_path": "/lab"}
