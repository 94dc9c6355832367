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
def test_the_lab_runs_as_a_module_without_gradio_and_plotly() -> None:
    hidden = "import sys; sys.modules['gradio'] = sys.modules['plotly'] = None; "
    code = hidden + "import runpy; sys.argv[1:] = ['run', 'A fox', '--max-tokens', '4']; runpy.run_module('lab', "
    code += "run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert done.stderr.startswith("4 tokens, ")


@pytest.mark.parametrize(("arguments", "said"), [(["--help"], "usage"), (["fit"], "required: model")])
def test_help_and_wrong_arguments_need_neither_torch_nor_transformers(arguments: list[str], said: str) -> None:
    """They take seconds."""
    hidden = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; "
    code = f"{hidden}import runpy; sys.argv[1:] = {arguments}; runpy.run_module('lab', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert said in done.stdout + done.stderr
    assert "Error" not in done.stderr


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_unwritable_output_is_reported_in_one_line(monkeypatch, capsys) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert command_line.main(["run", PROMPT, "--json", "--max-tokens", "2"]) == 2
    said = capsys.readouterr().err
    assert said == "python -m lab run: the output cannot be written: No space left on device.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_notes_that_cannot_be_written_cost_neither_the_answer_nor_the_status(shell: Shell, monkeypatch) -> None:
    """As where the errors go to a log on a full disk."""
    short = ["--adaptive-window", "--max-tokens", "2", "--json"]
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        status, run, _ = shell("run", PROMPT, *short)
        assert (status, len(json.loads(run)["events"]) > 3) == (0, True)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert shell("run", "", *short) == (2, "", "")


def test_a_closed_output_pipe_ends_the_command_silently(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["lab", "fit", "gpt-2", "--json"])
    monkeypatch.delitem(sys.modules, command_line.__name__)
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:  # written to once more when it is closed
        monkeypatch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as end:
            runpy.run_module("lab", run_name="__main__")
    assert (end.value.code, capsys.readouterr().err) == (141, "")


def test_unreadable_input_is_reported_in_one_line(monkeypatch, capsys) -> None:
    with open(os.open(os.devnull, os.O_WRONLY), "rb") as closed:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(closed))
        assert command_line.main(["run", "-"]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "python -m lab run: standard input cannot be read: Bad file descriptor.\n")
