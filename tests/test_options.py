"""What options of a command line mean."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lab.bench import __main__ as benches


@pytest.mark.parametrize("option", ["--json=~/there/it.json", "--json=/there/it.json", "--json=it.json"])
def test_a_file_may_be_named_from_home(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    """A shell expands no ~ after an equals sign."""
    monkeypatch.setenv("HOME", "/home/me")
    wanted = Path(option.removeprefix("--json=").replace("~", "/home/me"))
    assert benches.commands().parse_args(["ladder", option]).json == wanted


def test_all_that_a_bench_compares_gets_as_many_threads_as_there_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch counts the machine's, of which a container may have only some; the step in C takes no more than these."""
    given: list[int] = []
    monkeypatch.setattr("sys.argv", ["bench", "ladder"])
    monkeypatch.setattr("lab.backends.cpu.cpu_count.cores", lambda: 2)
    monkeypatch.setattr(benches, "_measure", lambda args, report: True)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    assert benches.main() == 0
    assert given == [2]
