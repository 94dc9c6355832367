"""The command that compares settings, and what it prints when it cannot finish."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import pytest

from lab.trace.events import Finished
from tests.cli.conftest import PROMPT, Shell


@pytest.mark.parametrize("tty", [False, True])
def test_a_comparison_shows_its_progress_on_a_terminal_only(shell: Shell, monkeypatch, tty: bool) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: tty)
    _, table, said = shell("compare", PROMPT, "", "paged=true", "--repeats", "1", "--max-tokens", "4")
    assert "runs done" not in table
    assert [f"{done} of 4 runs done" in said for done in (1, 4)] == [tty, tty]
    assert not said or said.endswith("\r\x1b[K")


def test_a_comparison_is_printed_as_a_table_or_json(shell: Shell) -> None:
    command = ["compare", PROMPT, "", "speculative=draft", "--repeats", "1", "--max-tokens", "8"]
    status, table, _ = shell(*command)
    assert status == 0
    assert [line.split()[-1] for line in table.splitlines()[1:3]] == ["default", "speculative=draft"]
    assert table.endswith("All wrote the same.\n")
    answer = json.loads(shell(*command, "--json")[1])
    assert answer["differences"] == []
    assert answer["settings"]["default"]["acceptance"] is None
    assert answer["settings"]["speculative=draft"]["acceptance"] > 0


@pytest.mark.parametrize(
    ("settings", "temperature", "said"),
    [
        (["", "speculative=draft"], "0.8", True),
        ([f"speculative=early_exit, early_exit_layer={layer}" for layer in (1, 3)], "0.8", True),
        (["", "speculative=synthetic, kv_dtype=int4"], "0.8", False),
        (["", "speculative=draft"], "0", False),
    ],
)
def test_above_temperature_0_other_tokens_by_speculation_are_no_difference_in_quality(
    shell: Shell, settings: list[str], temperature: str, said: bool
) -> None:
    how = ["--repeats", "1", "--max-tokens", "48", "--temperature", temperature]
    _, out, notes = shell("compare", PROMPT, *settings, *how)
    assert notes.startswith("Above temperature 0, ") == said
    assert "All wrote" not in out or not said


@pytest.mark.parametrize(("number", "finished"), [(1, []), (4, ["default"]), (6, ["default", "paged=true"])])
def test_what_had_finished_before_a_run_failed_is_printed(shell, engine, monkeypatch, number: int, finished) -> None:
    """Of 6 runs, the first two to warm up."""
    stream, begun = engine.stream, itertools.count(1)

    def failing(*arguments, **options):
        fails = next(begun) == number
        for event in stream(*arguments, **options):
            failed = {"reason": "error", "message": "the device ran out of memory."}
            yield replace(event, **failed) if fails and isinstance(event, Finished) else event

    monkeypatch.setattr(engine, "stream", failing)
    command = ["compare", PROMPT, "", "paged=true", "--repeats", "2", "--max-tokens", "4"]
    status, table, said = shell(*command)
    assert status == 1
    assert [line.split()[-1] for line in table.splitlines()[1:]] == finished
    assert re.fullmatch(f"(default|paged=true): decoding '{PROMPT}' failed: the device ran out of memory.\n", said)
    begun = itertools.count(1)
    status, out, _ = shell(*command, "--json")
    assert (status, list(json.loads(out)["settings"]), json.loads(out)["differences"]) == (1, finished, None)
