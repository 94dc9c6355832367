"""The command: mistakes are reported before anything is run, and nothing half written is left behind."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from visualize.export import __main__ as command
from visualize.export.folder import MANIFEST
from visualize.export.site import Terminal
from visualize.recorded_results import run_files


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was to be made; nothing is: the site is one page."""
    asked: list[Any] = []
    monkeypatch.setattr(command, "make", lambda load, what, terminal: asked.append(what) or {"index.html": "x"})
    return asked


def test_the_files_made_are_written_and_their_place_is_announced(
    tmp_path: Path, make: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written := io.BytesIO(), encoding="cp1252"))
    command.main([str(tmp_path / "Łódź"), "--quick", "--run", "a.json", "--run", "b.json"])
    sys.stdout.flush()
    assert "Łódź" in written.getvalue().decode()
    assert {path.name for path in (tmp_path / "Łódź").iterdir()} == {"index.html", MANIFEST}
    assert make[0].files == (*run_files(), Path("a.json"), Path("b.json")), "the repository's own come first"
    assert len(make[0].runs) < len(command.Wanted().runs)


def test_what_cannot_be_done_is_refused_before_anything_is_loaded_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "load_engine", pytest.fail)
    (tmp_path / "thesis.tex").write_text("mine", "utf-8")
    site = str(tmp_path / "site")
    for arguments, says in (
        ([str(tmp_path)], "is not empty and holds no site"),
        ([site, "--run", str(tmp_path / "gone.json")], "gone.json cannot be read"),
    ):
        with pytest.raises(SystemExit, match="2"):
            command.main(arguments)
        assert says in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_terminal_shows_each_step_on_one_line_and_a_log_only_the_parts() -> None:
    reported = []
    for stream in (Screen(), io.StringIO()):
        terminal = Terminal(stream, 2)
        terminal.part("models")
        terminal.step("7 tokens" + " and more" * 100)
        terminal.note("a lesson is left out")
        reported.append(stream.getvalue())
    screen, file = reported
    assert file == "[1/2] models (after 0 s)\na lesson is left out\n"
    assert "7 tokens" in screen
    assert max(map(len, screen.replace("\x1b[K", "").split("\r"))) < 200
    assert [line.rpartition("\r\x1b[K")[2] for line in screen.split("\n")] == file.split("\n")
