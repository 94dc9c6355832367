"""The command: mistakes are reported before anything is run, and nothing half written is left behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import pytest
from transformers.utils import logging as transformers_logging

from lab import export
from lab.errors import LabError
from visualize.export import __main__ as command
from visualize.export.folder import MANIFEST
from visualize.export.terminal import Terminal
from visualize.recorded_results import run_files


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**how: Any) -> None:
        raise AssertionError("nothing is to be loaded")

    monkeypatch.setattr(command, "load_engine", refuse)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        command.main(list(arguments))
    assert left.value.code == 2
    return capsys.readouterr().err


def test_a_folder_with_other_files_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("mine", "utf-8")
    assert "is not empty and holds no site" in fails(capsys, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_files_that_come_while_the_site_is_made_are_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(*given: object) -> dict[str, str]:
        (tmp_path / "thesis.tex").write_text("mine", "utf-8")
        return {"index.html": "x"}

    monkeypatch.setattr(command, "make", make)
    assert "is not empty and holds no site" in fails(capsys, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_run_file_that_cannot_be_read_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = fails(capsys, str(tmp_path / "site"), "--run", str(tmp_path / "gone.json"))
    assert "gone.json cannot be read" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["site", "far/away/site"])
def test_an_unwritable_place_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def refuse(**how: object) -> str:
        assert how["dir"] == tmp_path
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    assert f"{tmp_path / place} cannot be written: Permission denied." in fails(capsys, str(tmp_path / place))
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_old_site_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, site = tempfile.mkdtemp, tmp_path / "site"
    site.mkdir()

    def refuse(**how: object) -> str:
        if how["dir"] == site:
            raise PermissionError(13, "Permission denied")
        return made(**how)

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    assert "cannot be written: Permission denied." in fails(capsys, str(site))
    assert [path.name for path in tmp_path.rglob("*")] == ["site"]


def test_a_folder_inside_a_file_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine", "utf-8")
    assert "cannot be written: Not a directory." in fails(capsys, str(tmp_path / "file" / "site"))
    assert "cannot be written: File name too long." in fails(capsys, str(tmp_path / ("a" * 300)))


def test_a_site_in_any_folder_is_announced_whatever_the_encoding_of_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    monkeypatch.setattr(command, "make", lambda *given: {"index.html": "a site"})
    command.main([str(tmp_path / "Łódź")])
    sys.stdout.flush()
    assert "Łódź" in written.getvalue().decode()


def test_an_interrupted_export_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "make", interrupted)
    with pytest.raises(SystemExit) as left:
        command.main([str(tmp_path / "site")])
    assert left.value.code == 130
    assert "Nothing was written." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_during_startup_ends_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "lab.export", str(tmp_path / "site"), "--quick"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
        next(line for line in started.stderr if "transformers" in line)  # imports are under way
        started.send_signal(signal.SIGINT)
        assert "Traceback" not in started.stderr.read()
    assert started.returncode == -signal.SIGINT
    assert list(tmp_path.iterdir()) == []


def test_the_files_made_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = []
    monkeypatch.setattr(command, "make", lambda load, what, terminal: wanted.append(what) or {"index.html": "x"})
    command.main([str(tmp_path / "site"), "--quick", "--run", "a.json", "--run", "b.json"])
    assert {path.name for path in (tmp_path / "site").iterdir()} == {"index.html", MANIFEST}
    assert wanted[0].files == (*run_files(), Path("a.json"), Path("b.json")), "the repository's own come first"
    assert len(wanted[0].runs) < len(command.Wanted().runs)


def test_lines_that_stay_begin_where_the_current_step_was_shown() -> None:
    terminal = Terminal(screen := Screen(), 2)
    terminal.part("models")
    terminal.step("7 tokens")
    terminal.note("a lesson is left out")
    terminal.step("8 tokens")
    terminal.part("runs")
    shown = [line.rpartition("\r\x1b[K")[2] for line in screen.getvalue().split("\n")]
    assert shown == ["[1/2] models (after 0 s)", "  a lesson is left out", "[2/2] runs (after 0 s)", ""]


def test_once_it_has_begun_the_export_itself_tells_of_an_interrupt_and_of_its_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[object] = []
    bars, before = transformers_logging.is_progress_bar_enabled(), signal.signal(signal.SIGINT, signal.SIG_DFL)
    monkeypatch.setattr(
        command,
        "main",
        lambda: found.extend((signal.getsignal(signal.SIGINT), transformers_logging.is_progress_bar_enabled())),
    )
    try:
        export.main()
    finally:
        signal.signal(signal.SIGINT, before)
        if bars:
            transformers_logging.enable_progress_bar()
    assert found == [signal.default_int_handler, False]


@pytest.mark.parametrize("end", [None, LabError("No room."), KeyboardInterrupt()], ids=["made", "failed", "stopped"])
def test_what_is_under_way_is_no_longer_shown_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException | None
) -> None:
    def make(load: Any, wanted: Any, terminal: Terminal) -> dict[str, str]:
        for _ in range(3 + len(wanted.lessons)):
            terminal.part("a part")
        terminal.step("7 tokens")
        if end:
            raise end
        return {"index.html": "x"}

    monkeypatch.setattr(command, "make", make)
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    with suppress(SystemExit):
        command.main([str(tmp_path / "site"), "--quick"])
    shown, _, after = screen.getvalue().partition("7 tokens")
    assert "[5/5] a part" in shown
    assert after.startswith("\r\x1b[K")


@pytest.fixture
def unread() -> Iterator[TextIO]:
    """A pipe that nobody reads any more, as after ``| head``."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        yield pipe


def test_a_site_is_written_though_nobody_reads_of_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unread: TextIO
) -> None:
    def make(load: Any, wanted: Any, terminal: Terminal) -> dict[str, str]:
        terminal.part("models")
        terminal.note("a lesson is left out")
        return {"index.html": "x"}

    monkeypatch.setattr(command, "make", make)
    monkeypatch.setattr(sys, "stderr", unread)
    command.main([str(tmp_path / "site")])
    assert (tmp_path / "site" / "index.html").exists()


def test_output_that_cannot_be_written_is_reported_once_the_site_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, unread: TextIO
) -> None:
    monkeypatch.setattr(command, "make", lambda *given: {"index.html": "x"})
    ended = []
    with open(os.open(os.devnull, os.O_RDONLY), "w") as unwritable:
        for output in (unread, unwritable):
            monkeypatch.setattr(sys, "stdout", output)
            with pytest.raises(SystemExit) as left:
                command.main([str(tmp_path / "site")])
            ended.append((left.value.code, capsys.readouterr().err))
    said = "python -m lab.export: the output cannot be written: Bad file descriptor.\n"
    assert ended == [(141, ""), (2, said)]
    assert (tmp_path / "site" / "index.html").exists()


def test_a_terminal_shows_each_step_on_one_line_and_a_log_only_the_parts() -> None:
    told = []
    for stream in (Screen(), io.StringIO()):
        terminal = Terminal(stream, 2)
        terminal.part("models")
        terminal.step("7 tokens" + " and more" * 100)
        terminal.clear()
        told.append(stream.getvalue())
    screen, file = told
    assert file == "[1/2] models (after 0 s)\n"
    assert "7 tokens" in screen
    assert max(map(len, screen.replace("\x1b[K", "").split("\r"))) < 200
    assert screen.endswith("\r\x1b[K")
