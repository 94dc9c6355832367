"""Imports between the packages (rooms) go one way only."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "lab": ("gradio", "plotly", "visualize", "lessons", "app", "tests"),
    "lab/trace": ("torch", "transformers"),
    "lessons": ("gradio", "plotly", "visualize", "app", "tests"),
    "visualize": ("app", "tests", "torch", "transformers"),
    "visualize/figures": ("gradio",),
}
DOORS = {"lab/export.py": {"visualize"}}
"""Entry points that may import a package above their own, and which. Nothing imports them."""


def imports(path: Path) -> set[str]:
    """Top-level names of the packages a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("room", FORBIDDEN)
def test_a_room_does_not_import_what_is_above_it(room):
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        assert not (imports(path) & set(FORBIDDEN[room])) - DOORS.get(name, set()), name


def test_no_module_imports_an_entry_point():
    for door in DOORS:
        module = door.removesuffix(".py").replace("/", ".")
        package, _, name = module.rpartition(".")
        used = re.compile(rf"\b(import {module}|from {module}|from {package} import .*\b{name})\b")
        for path in [ROOT / "app.py", *(path for room in FORBIDDEN for path in (ROOT / room).rglob("*.py"))]:
            assert not used.search(path.read_text("utf-8")), path


def test_importing_the_lab_does_not_import_the_page():
    code = "import sys, lab.export; print([m for m in ('gradio', 'plotly', 'visualize') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
