"""One running app for all tests of the API for programs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client

from tests.api.calls import get
from tests.browser.conftest import started


@pytest.fixture(scope="package")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for temporary files, in which somebody else owns Gradio's for uploads."""
    folder = tmp_path_factory.mktemp("sent")
    (folder / "gradio").touch()
    return folder


@pytest.fixture(scope="package")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The app's output."""
    return tmp_path_factory.mktemp("app") / "log.txt"


@pytest.fixture(scope="package")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment variables for a process that is to do without a network, and the file of whom it asked for. There are
    no variables that would keep libraries from asking."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "asked").touch()
    (folder / "sitecustomize.py").write_text(Path(__file__).with_name("network.py").read_text("utf-8"), "utf-8")
    kept = {"PYTHONPATH": str(folder), "ASKED": str(folder / "asked")}
    with pytest.MonkeyPatch.context() as environment:
        for name in os.environ:
            if name.startswith(("HF_", "GRADIO_")):
                environment.delenv(name)
        yield kept | {"HF_HUB_OFFLINE": "", "GRADIO_IS_E2E_TEST": ""}


@pytest.fixture(scope="package")
def app(log: Path, sent: Path, watched: dict[str, str]) -> Iterator[tuple[str, subprocess.Popen]]:
    """A running app, whose log may hold no traceback, and which may ask for nobody, whatever the tests do with it."""
    latin = {"PYTHONIOENCODING": "cp1252"}  # of a log file on Windows: it lacks what Gradio prints
    with started(log, TMPDIR=str(sent), **latin, **watched) as running:
        yield running
    assert "Traceback" not in log.read_text(), log.read_text()
    assert Path(watched["ASKED"]).read_text() == ""


@pytest.fixture(scope="package")
def server(app: tuple[str, subprocess.Popen]) -> str:
    """Its address."""
    return app[0]


@pytest.fixture(scope="package")
def client(server: str) -> Iterator[Client]:
    client = Client(server, verbose=False, analytics_enabled=False)
    yield client
    client.close()


@pytest.fixture(scope="package")
def events(server: str) -> list[dict[str, Any]]:
    """The pages' events that bypass the queue, each with the ``values`` that a page sends at first."""
    config = json.loads(get(f"{server}/config")[1])
    first = {it["id"]: it["props"].get("value") for it in config["components"]}
    there = [it for it in config["dependencies"] if it["backend_fn"] and not it["queue"] and it["inputs"]]
    return [it | {"values": [first[number] for number in it["inputs"]]} for it in there]
