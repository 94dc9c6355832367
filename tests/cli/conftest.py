"""Commands, run in this process on an engine that is loaded once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import lab.__main__ as command_line
from lab import load_engine
from lab.cli import commands

ROOT = Path(__file__).parents[2]
PROMPT = "Once upon a time"
Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="package")
def engine():
    return load_engine()


@pytest.fixture
def shell(engine, monkeypatch, capsys) -> Shell:
    """Runs a command in this process, on an engine that is loaded once. Returns exit status, stdout and stderr."""
    monkeypatch.setattr(commands, "load_engine", lambda *_, **__: engine)

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            status = command_line.main(list(arguments))
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run
