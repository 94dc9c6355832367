"""A chat in a terminal: every answer is followed by what its turn found in the cache."""

from __future__ import annotations

import io
import itertools
import re
import sys

import pytest

from lab.cli import commands
from lab.cli.arguments import INTERRUPTED
from lab.engine.engine import Engine
from tests import tiny_models
from tests.cli.conftest import Shell

SHORT = ["--max-tokens", "12", "--ignore-eos"]


@pytest.fixture(scope="module")
def talker() -> Engine:
    return tiny_models.chat_engine("thinking")


@pytest.fixture
def told(shell: Shell, talker: Engine, monkeypatch: pytest.MonkeyPatch):
    """Types lines into a chat; an exception among them is what the terminal raises there."""
    monkeypatch.setattr(commands, "load_engine", lambda *_, **__: talker)
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())

    def run(lines: list[str | BaseException], *options: str) -> tuple[int, str, list[tuple[int, ...]]]:
        typed = iter([*lines, EOFError()])

        def read(prompt: str) -> str:
            if isinstance(line := next(typed), BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", read)
        status, out, notes = shell("chat", *SHORT, *options)
        found = re.findall(r"prefix cache: (\d+) of (\d+) prompt tokens", notes)
        return status, out, [tuple(map(int, each)) for each in found]

    return run


def test_a_conversation_goes_on_and_says_what_each_turn_found(told, talker: Engine) -> None:
    status, out, found = told(["Good morning to you.", "", "And why is that so?", "Really?"], "--system", "Be brief.")
    assert (status, out.count("\n") >= 3, len(found)) == (0, True, 3)
    assert found[0][0] == 0
    for (_, before), (hit, prompt) in itertools.pairwise(found):
        assert before - 16 < hit < prompt, "all of the turn before it, but for a partial block"
    assert told(["x", KeyboardInterrupt()])[0] == INTERRUPTED
    assert told(["x"], "--no-enable-prefix-caching")[2][0][0] == 0
    without, with_switch = (told(["x"], *how)[2][0][1] for how in ([], ["--no-thinking"]))
    assert with_switch == without + len("<think>\n\n</think>\n\n")


def test_standard_input_is_one_message(shell: Shell, talker: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "load_engine", lambda *_, **__: talker)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"two\nlines")))
    status, out, notes = shell("chat", *SHORT)
    assert (status, bool(out)) == (0, True)
    assert notes.count("prefix cache") == 1


def test_a_base_model_is_told_apart(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello")))
    status, out, notes = shell("chat")
    assert (status, out) == (2, "")
    assert "no chat template" in notes
