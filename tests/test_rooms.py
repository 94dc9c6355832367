"""The arrows between rooms run one way."""

from __future__ import annotations

import ast
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
        assert not imports(path) & set(FORBIDDEN[room]), path.relative_to(ROOT)


def test_the_engine_alone_brings_no_page_with_it():
    code = "import sys, lab; print([m for m in ('gradio', 'plotly', 'visualize') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
