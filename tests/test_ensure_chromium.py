"""The browser tests are never skipped silently: a Chromium is found, installed, or asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ensure_chromium


@pytest.fixture
def make(monkeypatch, tmp_path) -> Callable[[str], Path]:
    """Makes a program on a machine without a browser or anything that could install one."""
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ensure_chromium, "playwright_own", lambda: None)

    def program(name: str, script: str = "") -> Path:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}")
        (tmp_path / name).chmod(0o755)
        return tmp_path / name

    return program


@pytest.mark.parametrize(
    ("there", "named", "used"),
    [
        (["chromium"], None, "chromium"),
        (["google-chrome", "chromium-headless-shell", "chromium"], None, "chromium-headless-shell"),
        (["chromium", "other"], "other", "other"),
    ],
)
def test_a_browser_that_is_there_is_used(make, monkeypatch, capsys, there, named, used) -> None:
    """The one that CHROMIUM names comes first, then one without windows."""
    programs = {name: make(name) for name in there}
    if named:
        monkeypatch.setenv("CHROMIUM", str(programs[named]))
    assert ensure_chromium.main() == 0
    assert capsys.readouterr().out.strip() == str(programs[used])


@pytest.mark.parametrize("works", [True, False])
def test_a_missing_browser_is_installed_or_asked_for(make, monkeypatch, capsys, works: bool) -> None:
    monkeypatch.setattr(ensure_chromium, "install", lambda: make("chromium") if works else None)
    assert ensure_chromium.main() == (not works)
    out, err = capsys.readouterr()
    assert bool(out) == works
    assert works or "'chromium'" in err
