"""The command: mistakes are reported before anything is run, and nothing half written is left behind."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import logging as transformers_logging

from lab import export
from lab.errors import LabError
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


def test_files_that_come_while_the_site_is_made_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "make", lambda *_: (tmp_path / "thesis.tex").touch() or {"index.html": "x"})
    with pytest.raises(SystemExit, match="2"):
        command.main([str(tmp_path)])
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_an_interrupt_during_startup_ends_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "lab.export", str(tmp_path / "site"), "--quick"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as started:
        next(line for line in started.stderr if "transformers" in line)  # imports are under way
        started.send_signal(signal.SIGINT)
        assert "Traceback" not in started.stderr.read()
    assert started.returncode == -signal.SIGINT
    assert list(tmp_path.iterdir()) == []


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
    with suppress(SystemExit) if end is None else pytest.raises(SystemExit, match=r"2|130"):
        command.main([str(tmp_path / "site"), "--quick"])
    shown, _, after = screen.getvalue().partition("7 tokens")
    assert "[5/5] a part" in shown
    assert after.startswith("\r\x1b[K")
    assert (tmp_path / "site").exists() == (end is None)


def test_a_site_is_written_though_nobody_reads_of_it(
    tmp_path: Path, make: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after ``| head``; or where the output cannot be written."""
    reading, writing = os.pipe()
    os.close(reading)
    ended = []
    with open(writing, "w") as unread, open(os.open(os.devnull, os.O_RDONLY), "w") as unwritable:
        for output in (unread, unwritable):
            monkeypatch.setattr(sys, "stdout", output)
            with pytest.raises(SystemExit) as left:
                command.main([str(tmp_path / "site")])
            ended.append((left.value.code, capsys.readouterr().err))
        Terminal(unwritable, 1).part("models")  # which raises nothing either
    said = "python -m lab.export: the output cannot be written: Bad file descriptor.\n"
    assert ended == [(141, ""), (2, said)]
    assert (tmp_path / "site" / "index.html").exists()


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
