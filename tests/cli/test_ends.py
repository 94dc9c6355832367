"""How a command starts and ends: without what it does not need, interrupted, or with output that cannot be written."""

from __future__ import annotations

import io
import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lab.__main__ as command_line
from lab import Run
from lab.cli import commands
from lab.trace.events import Committed
from tests.cli.conftest import PROMPT, ROOT, Shell


def test_an_interrupted_run_prints_what_was_written_so_far(shell: Shell, engine, monkeypatch, tmp_path) -> None:
    """Ctrl-C after the third commit."""
    stream = engine.stream

    def interrupted(*arguments, **options):
        commits = 0
        for event in stream(*arguments, **options):
            yield event
            commits += isinstance(event, Committed)
            if isinstance(event, Committed) and commits == 3:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(engine, "stream", interrupted)
    before = signal.getsignal(signal.SIGINT)
    command = ["compare", PROMPT, "", "paged=true", "--json", "--max-tokens", "200"]
    status, out, said = shell(*command)
    assert (status, said) == (130, "Interrupted: not every setting has had a run.\n")
    assert json.loads(out)["differences"] is None
    status, out, _ = shell("run", PROMPT, "--json", "--max-tokens", "200")
    assert status == 130
    assert signal.getsignal(signal.SIGINT) is before
    (tmp_path / "run.json").write_text(out, "utf-8")
    run = Run.load(tmp_path / "run.json")
    assert run.reason == "cancelled"
    assert 0 < len(run.token_ids) < 200


@pytest.mark.slow
@pytest.mark.parametrize(("module", "arguments"), [("lab", ["run", PROMPT]), ("lab.bench", ["kv"])])
def test_an_interrupted_start_ends_silently(module: str, arguments: list[str]) -> None:
    """While it imports its packages, which is most of the start."""
    begun = (
        "import builtins, os, runpy, signal, sys\n"
        "honest = builtins.__import__\n"
        "def watched(name, *rest, **how):\n"
        "    if name.startswith('transformers'): os.kill(os.getpid(), signal.SIGINT)\n"
        "    return honest(name, *rest, **how)\n"
        "builtins.__import__ = watched\n"
        f"sys.argv[1:] = {arguments}\n"
        f"runpy.run_module({module!r}, run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", begun], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def module(monkeypatch, *arguments: str) -> int:
    """The exit status of ``python -m lab``, in this process."""
    monkeypatch.setattr(sys, "argv", ["lab", *arguments])
    monkeypatch.delitem(sys.modules, command_line.__name__)
    with pytest.raises(SystemExit) as end:
        runpy.run_module("lab", run_name="__main__")
    return end.value.code


def test_the_lab_runs_as_a_module_without_gradio_and_plotly(engine, monkeypatch, capsys) -> None:
    for name in ("gradio", "plotly"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(commands, "load_engine", lambda *_, **__: engine)
    assert module(monkeypatch, "run", "A fox", "--max-tokens", "4") == 0
    out, notes = capsys.readouterr()
    assert out.strip()
    assert notes.startswith("4 tokens, ")


def test_help_and_wrong_arguments_need_neither_torch_nor_transformers() -> None:
    """They take seconds to import."""
    code = """
import runpy, sys
sys.modules["torch"] = sys.modules["transformers"] = None
for sys.argv in (["lab", "--help"], ["lab", "fit"]):
    try:
        runpy.run_module("lab", run_name="__main__")
    except SystemExit:
        pass
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "usage" in done.stdout
    assert "required: model" in done.stderr
    assert "Error" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_costs_one_line_or_the_notes(shell: Shell, monkeypatch, capsys) -> None:
    """Errors may go to a log on a full disk."""
    short = ["--adaptive-window", "--max-tokens", "2", "--json"]
    for prompt, status in ((PROMPT, 0), ("", 2)):
        with open("/dev/full", "w") as full, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", full)
            found, run, _ = shell("run", prompt, *short)
        assert (found, bool(run)) == (status, not status)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert command_line.main(["run", PROMPT, *short]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == "python -m lab run: the output cannot be written: No space left on device."


def test_a_closed_output_pipe_ends_the_command_silently(monkeypatch, capsys) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:  # written to once more when it is closed
        monkeypatch.setattr(sys, "stdout", pipe)
        assert module(monkeypatch, "fit", "gpt-2", "--json") == 141
    assert capsys.readouterr().err == ""


def test_unreadable_input_is_reported_in_one_line(monkeypatch, capsys) -> None:
    with open(os.open(os.devnull, os.O_WRONLY), "rb") as closed:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(closed))
        assert command_line.main(["run", "-"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "python -m lab run: standard input cannot be read: Bad file descriptor.\n")
