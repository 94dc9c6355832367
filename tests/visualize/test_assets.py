"""The pages' modules: each says what it imports, and a bundle of them is one script that needs no server."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from visualize.assets import EXPORT, IMPORT, ROUTES, bundle, module_folder, modules, with_imports

MODULES = modules()


def beside(module: str, path: str) -> str:
    """The path that an import in ``module`` leads to."""
    parts = list(PurePosixPath(module).parent.parts)
    for part in path.split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_what_there_is_from_shared_ones_and_its_own_page(module: str) -> None:
    text = MODULES[module]
    assert len(re.findall(r"^import\b", text, re.MULTILINE)) == len(IMPORT.findall(text)), "in a form that is bundled"
    assert len(re.findall(r"^export\b", text, re.MULTILINE)) == len(EXPORT.findall(text)), "no ``let``: bundles copy"
    for names, path in IMPORT.findall(text):
        source = beside(module, path)
        assert set(names.split(", ")) <= set(EXPORT.findall(MODULES[source])), source
        assert source.startswith("static/") or PurePosixPath(source).parent == PurePosixPath(module).parent


def test_a_bundle_has_every_module_once_after_what_it_imports() -> None:
    order = with_imports("static/header.js", "static/run_page.js", "pages/lessons/observe.js")
    for place, module in enumerate(order):
        assert {beside(module, path) for _, path in IMPORT.findall(MODULES[module])} <= set(order[:place])
    script = bundle("static/header.js", "static/run_page.js", "pages/lessons/observe.js")
    assert re.findall(r'^bundle\["([\w./]+)"\] = ', script, re.MULTILINE) == order
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    assert script == bundle("static/header.js", "static/run_page.js", "pages/lessons/observe.js")


def test_modules_are_served_for_ever_under_a_version_and_nothing_else_is() -> None:
    client = TestClient(Starlette(routes=ROUTES))
    answer = client.get(f"/{module_folder()}/pages/pool/page.js")
    assert answer.text == MODULES["pages/pool/page.js"]
    assert answer.headers["content-type"].startswith("text/javascript")
    assert "immutable" in answer.headers["cache-control"]
    for path in ("modules/0123456789ab/static/dom.js", f"{module_folder()}/static/stage.html", f"{module_folder()}/x"):
        refused = client.get(f"/{path}")
        assert refused.status_code == 404
        assert "cache-control" not in refused.headers
