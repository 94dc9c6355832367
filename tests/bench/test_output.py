"""The bench command keeps what it measured, whatever happens to its output, and refuses invalid arguments."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.backends.cpu.native_model import native_step
from lab.bench import __main__ as command
from lab.bench import step_times
from lab.bench.output import format_record, write
from tests import tiny_models

Command = Callable[..., int]


@pytest.fixture
def bench(monkeypatch) -> Command:
    """Runs the command in this process, on a tiny engine. Returns the exit status."""
    lab = tiny_models.engine("llama", "good")
    monkeypatch.setattr(command, "load_engine", lambda *_, **__: lab)

    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["bench", *map(str, arguments)])
        try:
            return command.main()
        except SystemExit as end:
            return end.code

    return run


@pytest.fixture
def measured(monkeypatch) -> list[int]:
    """Replaces a long measurement by one that reports a line and returns. Has an entry for each."""
    calls: list[int] = []

    def measure(engine, max_tokens, repeats, report):
        report("half of it")
        calls.append(repeats)
        return {"rows": [1.5], "limits": "p − q, γ = 4"}

    monkeypatch.setattr(step_times, "run_roofline", measure)
    return calls


def raises(error: BaseException) -> Callable[..., None]:
    def run(*_: object, **__: object) -> None:
        raise error

    return run


def test_measurements_are_printed_and_written_with_what_the_engine_gave_up(bench, measured, tmp_path, capsys) -> None:
    """Without a compiler torch computes all rows of the lab alike, several times slower."""
    lab, out = command.load_engine(), tmp_path / "new" / "folder" / "out.json"
    for failure, said in ((None, []), (why := "Torch computes the steps: there is no C compiler.", [why])):
        native_step(lab.target).failure = failure
        assert bench("roofline", "--json", out) == 0
        record = json.loads(out.read_text())
        assert (record["bench"], record["rows"], record["fell_back"]) == ("roofline", [1.5], said)
        assert (record["target"], record["draft"]) == (lab.target.name, lab.draft.name)
        assert (record["max_tokens"], record["repeats"], record["dtype"]) == (64, 5, lab.dtype)
        lines = [*said, "half of it", "", *format_record(record).splitlines(), "", f"written to {out}"]
        assert capsys.readouterr().out.splitlines() == lines
        assert any("p − q, γ = 4" in line for line in lines)


def test_a_file_that_cannot_be_written_is_reported_before_measuring_if_possible(
    bench, measured, monkeypatch, tmp_path, capsys
) -> None:
    monkeypatch.setattr(command, "run_gpu", lambda *_, **__: measured.append(1))
    (file := tmp_path / "file").touch()
    for name in ("roofline", "gpu"):
        for out, why in ((file / "out.json", f"{file} is a file."), (tmp_path / ("a" * 300), "File name too long.")):
            assert bench(name, "--json", out) == 2
            assert capsys.readouterr().err == f"python -m lab.bench {name}: {out} cannot be written: {why}\n"
    assert measured == []
    monkeypatch.setattr(Path, "write_text", raises(OSError(28, "No space left on device")))
    assert bench("roofline", "--json", tmp_path / "out.json") == 2
    out, said = capsys.readouterr()
    assert "p − q" in out, "the table is printed first"
    assert said.endswith("out.json cannot be written: No space left on device.\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_an_output_that_fails_does_not_stop_the_measurement(bench, measured, monkeypatch, tmp_path, capsys) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    full = "python -m lab.bench roofline: the output cannot be written: No space left on device.\n"
    for output, status, said in ((writing, 141, ""), ("/dev/full", 2, full)):
        with open(output, "w") as stream:
            monkeypatch.setattr(sys, "stdout", stream)
            assert bench("roofline", "--json", tmp_path / "out.json") == status
        assert capsys.readouterr().err == said
        assert json.loads((tmp_path / "out.json").read_text())["rows"] == [1.5]
        (tmp_path / "out.json").unlink()


@pytest.mark.parametrize("before", [None, "an older record"])
def test_ctrl_c_is_reported_in_one_line_and_leaves_the_file_unchanged(
    bench, monkeypatch, tmp_path, capsys, before
) -> None:
    out, stop = tmp_path / "out.json", raises(KeyboardInterrupt())
    if before:
        out.write_text(before)
    monkeypatch.setattr(step_times, "run_roofline", stop)
    assert bench("roofline", "--json", out) == 130
    said = capsys.readouterr().err
    assert said == "python -m lab.bench roofline: interrupted before the end. Nothing is written.\n"
    assert (out.read_text() if out.exists() else None) == before
    monkeypatch.setattr(command, "run_gpu", lambda *_, **__: (write(out, {}), stop()))
    assert bench("gpu", "--json", out) == 130
    assert capsys.readouterr().err.endswith(f"interrupted before the end. What was measured is in {out}.\n")


def test_tables_and_records_hold_what_their_forms_cannot(bench, measured, monkeypatch, tmp_path) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    assert bench("roofline", "--json", tmp_path / "out.json") == 0
    assert "p − q, γ = 4" in written.getvalue().decode()
    write(out := tmp_path / "out.json", {"low": 1.5, "high": float("nan"), "ends": [float("inf"), -float("inf")]})
    assert json.loads(out.read_text()) == {"low": 1.5, "high": None, "ends": [None, None]}
    interval = {"value": 1.5, "low": 1.0, "high": None}
    record = {
        "gamma": 4,
        "whole": True,
        "lengths": [3, None],
        "rows": {
            "first": {"a": interval | {"high": 2.0}, "ids": [*range(9)]},
            "second row": {"a": interval | {"low": None}, "b": "y"},
        },
        "more": {"ratio": 0.25, "none": {}, "cases": [{"name": "one", "median": 1.0, "lower": 1.0, "upper": 1.0}]},
    }
    assert format_record(record).splitlines() == [
        *("", "gamma      4", "whole    yes", "lengths  3 -", ""),
        *("rows                   a  b", "first       1.5 (1 to 2)", "second row           1.5  y", ""),
        *("more", "ratio  0.25", "", "name  median  lower  upper", "one        1      1      1"),
    ]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("ladder --repeats 0", "argument --repeats: a whole number of at least 1"),
        ("roofline --max-tokens 3", "no room for a whole round"),
        ("logprobs --max-tokens 2", "of at least 3"),
        ("logprobs --logprobs 50", "logprobs"),
        ("serve --seed -1", "argument --seed: a whole number of at least 0"),
        ("ab --b paged=true --temperature -1", "temperature"),
        ("ab --b kv_dtype=int9", "kv_dtype must be one of"),
        ("ab --b paged=true --prompts nowhere.txt", "nowhere.txt cannot be read"),
        ("ab --b speculative=draft --target a/target", "name a --draft too"),
        ("kv --target another", "name a --text"),
        ("vllm --attach no_address", "no_address"),
        ("roofline --device tpu", "device must be"),
        ("ladder --target a/target", "name a --draft too"),
        ("window --target a/target --draft a/draft", "name a --mismatched too"),
        ("gpu --dtype int8", "dtype must be"),
    ],
)
def test_what_is_wrong_is_reported_in_one_line_before_models_are_loaded(
    bench, monkeypatch, tmp_path, capsys, arguments: str, part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    lab, loaded = command.load_engine(), []
    monkeypatch.setattr(command, "load_engine", lambda *them, **_: loaded.append(them) or lab)
    monkeypatch.setattr(command, "run_gpu", None)
    name = arguments.split()[0]
    assert bench(*arguments.split(), "--json", "out.json") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"python -m lab.bench {name}: ")
    assert part in said
    assert said.count("\n") == 1
    assert not loaded or "whole round" in part
    assert not list(tmp_path.iterdir())
