"""Imports go downwards only, file by file, type hints included, and never in a circle."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = (
    ("lab.config", "lab.errors", "lab.util"),
    ("lab.trace", "lab.settings"),
    ("lab.kv_cache",),
    ("lab.models",),
    ("lab.backends",),
    ("lab.engine",),
    ("lab.load", "lab.registry", "lab.measure", "lab.memory", "lab.vllm"),
    ("lab.claims", "lab.bench", "lab.training", "lab.cli"),
    ("lessons",),
    ("visualize",),
)
"""Lowest first. A file imports from its own floor or from below."""
ENTRY_POINTS = {"lab", "lab.__main__", "lab.export"}
"""Modules that only start something. They may import from any floor, and nothing of the lab's rooms imports them."""
LIBRARIES = {
    "lab": ("gradio", "plotly"),
    "lab.trace": ("torch", "transformers"),
    "visualize": ("torch", "transformers"),
}
"""Packages that a room does without."""


def modules() -> dict[str, Path]:
    """Every product file by its module's name; a package by its ``__init__``."""
    found = {}
    for room in ("lab", "lessons", "visualize"):
        for path in sorted((ROOT / room).rglob("*.py")):
            name = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


@functools.cache
def imported(path: Path) -> set[str]:
    """Modules of the project that a file imports, anywhere in it and for whatever purpose."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def module_of(name: str) -> str | None:
    """The project's module that an imported name is, or is in."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def floor_of(name: str) -> int:
    [floor] = [number for number, rooms in enumerate(FLOORS) if any(within(name, room) for room in rooms)]
    return floor


@functools.cache
def uses(module: str) -> set[str]:
    """Modules of the project from which a module imports."""
    return {other for name in imported(MODULES[module]) if (other := module_of(name))} - {module}


def test_every_file_has_a_floor() -> None:
    for module in MODULES.keys() - ENTRY_POINTS:
        floor_of(module)


def test_imports_go_downwards() -> None:
    upwards = [
        f"{module} imports {other}"
        for module in sorted(MODULES.keys() - ENTRY_POINTS)
        for other in sorted(uses(module) - ENTRY_POINTS)
        if floor_of(other) > floor_of(module)
    ]
    assert not upwards, "\n".join(upwards)


def test_no_circle_of_files() -> None:
    packages = {module for module, path in MODULES.items() if path.stem == "__init__"}
    TopologicalSorter({module: uses(module) - packages for module in MODULES}).prepare()  # names the circle it finds


def test_the_engine_sees_only_the_interface_of_backends() -> None:
    for module in MODULES:
        if within(module, "lab.engine"):
            seen = {other for other in uses(module) if within(other, "lab.backends")}
            assert seen <= {"lab.backends.interface"}, f"{module} imports {seen}"


def test_pages_import_nothing_of_each_other() -> None:
    pages = {module.split(".")[2] for module in MODULES if module.startswith("visualize.pages.")}
    for module in MODULES:
        page = module.split(".")[2] if module.startswith("visualize.pages.") else None
        others = {other for other in uses(module) for it in pages - {page} if within(other, f"visualize.pages.{it}")}
        assert not (page and others), f"{module} imports {others}"


@pytest.mark.parametrize("room", LIBRARIES)
def test_rooms_do_without_some_libraries(room: str) -> None:
    for module, path in MODULES.items():
        if within(module, room):
            found = {name for name in imported(path) if any(within(name, library) for library in LIBRARIES[room])}
            assert not found, f"{module} imports {found}"


def test_importing_the_lab_does_not_import_the_page() -> None:
    code = "import sys, lab.export; print([m for m in ('gradio', 'plotly', 'visualize') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
