"""Imports between the packages (rooms) go one way only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "lab": ("gradio", "plotly", "visualize", "lessons", "app", "tests"),
    "lab.trace": ("torch", "transformers"),
    "lessons": ("gradio", "plotly", "visualize", "app", "tests"),
    "visualize": ("app", "tests", "torch", "transformers"),
    "visualize.figures": ("gradio",),
}
DOORS = {"lab.export": ("visualize",)}
"""Entry points that may import a package above their own, and which. Nothing imports them."""


def modules(room: str) -> dict[str, Path]:
    """The files of a room and of all rooms in it, by the names of their modules."""
    paths = sorted((ROOT / room.replace(".", "/")).rglob("*.py"))
    assert paths
    return {path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): path for path in paths}


def imports(path: Path, *, hints: bool = True) -> set[str]:
    """What a file imports, anywhere in it: modules, or names in them. Without ``hints``, not what only they need."""
    names = set()
    tree = ast.parse(path.read_text("utf-8"))
    if not hints:
        tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def within(name: str, rooms: Iterable[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def room_of(name: str) -> str:
    """The room of a module, or of a name in one: a folder of its package. The lab's modules that are in none are a room
    each: some are above all others and some below."""
    package, *inside = name.split(".")
    room = ".".join([package, *inside[:1]])
    return room if package == "lab" or (ROOT / room.replace(".", "/")).is_dir() else package


@pytest.mark.parametrize("room", FORBIDDEN)
def test_a_room_does_not_import_what_is_above_it(room: str) -> None:
    for module, path in modules(room).items():
        for name in imports(path):
            assert not within(name, FORBIDDEN[room]) or within(name, DOORS.get(module, ())), f"{module} imports {name}"


@pytest.mark.parametrize("package", ["lab", "lessons", "visualize"])
def test_no_two_rooms_import_each_other(package: str) -> None:
    """Nor do three or more in a circle. In the lab, type hints may name what is above: a cache, the model it is of."""
    ways_in = "__init__", "__main__"
    graph = defaultdict(set)
    for module, path in modules(package).items():
        for name in imports(path, hints=package != "lab"):
            room, other = room_of(module), room_of(name)
            if path.stem not in ways_in and other != room and within(other, [package]):
                graph[room].add(other)
    TopologicalSorter(graph).prepare()  # raises for a circle, and names its rooms


def test_no_module_imports_an_entry_point() -> None:
    for path in [ROOT / "app.py", *(path for room in FORBIDDEN for path in modules(room).values())]:
        assert not [name for name in imports(path) if within(name, DOORS)], path


def test_importing_the_lab_does_not_import_the_page() -> None:
    code = "import sys, lab.export; print([m for m in ('gradio', 'plotly', 'visualize') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
