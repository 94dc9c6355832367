"""How serving begins and ends: what is said where it cannot."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from visualize import server
from visualize.missing_page import missing
from visualize.options import read_options


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Serves pages, launched by the given function, as if it was asked to end at once."""
    monkeypatch.setattr(server.signal, "signal", lambda *_: None)

    def begin(launch: Callable[..., None] = lambda **_: None) -> None:
        monkeypatch.setattr(server.threading, "Event", lambda: SimpleNamespace(wait=lambda _: True))
        queue = SimpleNamespace(close=lambda patience: None)

        def close(verbose: bool = True) -> None:
            if verbose:
                print("Closing server")

        pages = SimpleNamespace(queue=lambda **_: None, launch=launch, close=close)
        pages.local_url, pages.share_url = "http://127.0.0.1:7860/", None
        server.serve(pages, read_options([], {}), queue, {}, names=(), routes=(), announcement=str.upper)

    return begin


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("Cannot find empty port in range: 7860-7860."), "cannot listen on 127.0.0.1, port 7860: another"),
        (OSError(28, "No space left on device"), "the server cannot start: No space left on device.\n"),
    ],
)
def test_only_a_port_that_is_taken_is_called_taken(begin, capsys, error: OSError, said: str) -> None:
    def launch(**_: object) -> None:
        raise error

    with pytest.raises(SystemExit) as end:
        begin(launch)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"app.py: {said}")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_pages_are_served_though_their_address_cannot_be_printed(begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the output goes to a log on a full disk, or to a program that has ended."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        begin()


def test_nothing_is_printed_at_the_end(begin, capsys) -> None:
    """What read the output may be gone by then, and the status would say that the server failed."""
    begin()
    assert capsys.readouterr().out == "Decode Lab is at http://127.0.0.1:7860\nHTTP://127.0.0.1:7860/\n"


@pytest.mark.parametrize(("path", "said"), [("server", "--attach"), ("room", "--workshop"), ("a/b", "no page at this")])
def test_a_browser_is_told_what_to_do_at_an_address_without_a_page_and_a_program_gets_json(
    path: str, said: str
) -> None:
    app = Starlette(exception_handlers={404: missing})
    client = TestClient(app)
    seen = client.get(f"/{path}", headers={"accept": "text/html,*/*"})
    assert (seen.status_code, said in seen.text) == (404, True)
    assert f'href="{"../" * path.count("/")}deploy"' in seen.text
    assert client.get(f"/{path}").json() == {"detail": "Not Found"}
    assert client.post(f"/{path}", headers={"accept": "text/html"}).json() == {"detail": "Not Found"}
