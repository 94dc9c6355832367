"""The bench command keeps what it measured, whatever happens to its output, and refuses invalid arguments."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lab.backends.cpu.native_model import native_step
from lab.bench import __main__ as command
from lab.bench.output import format_table, write
from lab.errors import LabError
from tests import tiny_models

Command = Callable[..., int]


@pytest.fixture
def bench(monkeypatch) -> Command:
    """Runs the command in this process, on a tiny engine. Returns the exit status."""
    lab = tiny_models.engine("llama", "good")
    monkeypatch.setattr(command, "load_engine", lambda *_, **__: lab)

    def run(*arguments: str) -> int:
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
        return {"rows": [1.5], "limits": None}

    monkeypatch.setattr(command, "run_roofline", measure)
    monkeypatch.setattr(command, "format_roofline", lambda result: "the table")
    return calls


def test_measurements_are_printed_and_written(bench: Command, measured, tmp_path, capsys) -> None:
    out = tmp_path / "new" / "folder" / "out.json"
    assert bench("roofline", "--json", out) == 0
    assert json.loads(out.read_text())["rows"] == [1.5]
    assert capsys.readouterr().out == f"half of it\n\nthe table\n\nwritten to {out}\n"


@pytest.mark.parametrize("tty", [False, True])
def test_loading_shows_its_progress_on_a_terminal_only(bench: Command, measured, monkeypatch, tmp_path, tty) -> None:
    """In a log every state of a bar would stay."""
    silenced: list[int] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: tty)
    monkeypatch.setattr(command.transformers_logging, "disable_progress_bar", lambda: silenced.append(1))
    assert bench("roofline", "--json", tmp_path / "out.json") == 0
    assert silenced == [1] * (not tty)


def test_figures_of_an_engine_without_its_step_in_c_say_so(bench: Command, measured, tmp_path, capsys) -> None:
    """Without a compiler torch computes all rows of the lab alike, several times slower."""
    lab, out = command.load_engine(), tmp_path / "out.json"
    for failure, said in ((None, []), (why := "Torch computes the steps: there is no C compiler.", [why])):
        native_step(lab.target).failure = failure
        assert bench("roofline", "--json", out) == 0
        assert json.loads(out.read_text())["fell_back"] == said
        assert capsys.readouterr().out.splitlines()[: len(said)] == said


@pytest.mark.parametrize("option", ["--json", "--out"])
def test_an_unwritable_file_is_reported_before_measuring(
    bench: Command, measured, monkeypatch, tmp_path, capsys, option
) -> None:
    monkeypatch.setattr(command, "run_gpu", lambda *_, **__: measured.append(1))
    (file := tmp_path / "file").touch()
    name = {"--json": "roofline", "--out": "gpu"}[option]
    assert bench(name, option, file / "out.json") == 2
    said = capsys.readouterr().err
    assert said == f"python -m lab.bench {name}: {file / 'out.json'} cannot be written: {file} is a file.\n"
    assert measured == []
    assert bench(name, option, tmp_path / ("a" * 300)) == 2
    assert capsys.readouterr().err.endswith(" cannot be written: File name too long.\n")
    assert measured == []


def test_the_table_is_printed_even_if_writing_the_file_fails(
    bench: Command, measured, monkeypatch, tmp_path, capsys
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert bench("roofline", "--json", tmp_path / "out.json") == 2
    out, said = capsys.readouterr()
    assert "the table" in out
    assert (
        said == f"python -m lab.bench roofline: {tmp_path / 'out.json'} cannot be written: No space left on device.\n"
    )


def test_a_closed_output_pipe_does_not_stop_the_measurement(
    bench: Command, measured, monkeypatch, tmp_path, capsys
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert bench("roofline", "--json", tmp_path / "out.json") == 141
    assert capsys.readouterr().err == ""
    assert json.loads((tmp_path / "out.json").read_text())["rows"] == [1.5]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_unwritable_output_is_reported_and_the_file_is_written(
    bench: Command, measured, monkeypatch, tmp_path, capsys
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert bench("roofline", "--json", tmp_path / "out.json") == 2
    said = capsys.readouterr().err
    assert said == "python -m lab.bench roofline: the output cannot be written: No space left on device.\n"
    assert json.loads((tmp_path / "out.json").read_text())["rows"] == [1.5]


@pytest.mark.parametrize("before", [None, "an older record"])
def test_ctrl_c_is_reported_in_one_line_and_leaves_the_file_unchanged(
    bench: Command, monkeypatch, tmp_path, capsys, before
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out.json"
    if before:
        out.write_text(before)
    monkeypatch.setattr(command, "run_roofline", interrupted)
    assert bench("roofline", "--json", out) == 130
    said = capsys.readouterr().err
    assert said == "python -m lab.bench roofline: interrupted before the end. Nothing is written.\n"
    assert (out.read_text() if out.exists() else None) == before
    if before:
        os.utime(out, (1e9, 1e9))
    for parts, kept in ((0, "Nothing is written."), (1, f"The parts that were done are in {out}.")):
        monkeypatch.setattr(command, "run_gpu", lambda *_, parts=parts, **__: (parts and write(out, {}), interrupted()))
        assert bench("gpu", "--out", out) == 130
        assert capsys.readouterr().err.endswith(f"interrupted before the end. {kept}\n")


def test_a_device_without_memory_for_a_bench_is_reported_in_one_line(
    bench: Command, monkeypatch, tmp_path, capsys
) -> None:
    """What a bench computes beside the engine has no budget: transformers' own generation, or a text's logits."""

    def fails(error: Exception) -> Callable[..., None]:
        def run(*_: object) -> None:
            raise error

        return run

    monkeypatch.setattr(command, "run_roofline", fails(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")))
    assert bench("roofline", "--json", tmp_path / "out.json") == 2
    said = capsys.readouterr().err
    assert said.startswith("python -m lab.bench roofline: The device ran out of memory.")
    assert said.count("\n") == 1
    monkeypatch.setattr(command, "run_roofline", fails(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        bench("roofline", "--json", tmp_path / "out.json")
    assert not list(tmp_path.iterdir())


def test_a_table_is_printed_in_any_encoding_and_numbers_without_a_value_are_null(
    bench: Command, measured, monkeypatch, tmp_path
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    monkeypatch.setattr(command, "format_roofline", lambda result: "p − q, γ = 4")
    assert bench("roofline", "--json", tmp_path / "out.json") == 0
    assert "p − q, γ = 4" in written.getvalue().decode()
    write(out := tmp_path / "out.json", {"low": 1.5, "high": float("nan"), "ends": [float("inf"), -float("inf")]})
    assert json.loads(out.read_text()) == {"low": 1.5, "high": None, "ends": [None, None]}


def test_a_table_has_the_widths_of_its_cells() -> None:
    table = format_table(["", "A", "long head"], [["first", "1.5 (1 to 2)", "x"], ["second row", "", "y"]])
    assert table.splitlines() == [
        "                       A  long head",
        "first       1.5 (1 to 2)          x",
        "second row                        y",
    ]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("ladder --repeats 0", "argument --repeats: a whole number of at least 1"),
        ("ladder --max-tokens 1", "of at least 2"),
        ("window --repeats=--5", "argument --repeats: a whole number of at least 1"),
        ("roofline --max-tokens 3", "no room for a whole round"),
        ("logprobs --max-tokens 2", "of at least 3"),
        ("logprobs --logprobs 50", "logprobs"),
        ("serve --seed -1", "argument --seed: a whole number of at least 0"),
        ("ab --b paged=true --temperature -1", "temperature"),
        ("ab --b kv_dtype=int9", "kv_dtype must be one of"),
        ("ab --b kv_cache=false,kv_dtype=int8", "nothing is stored"),
        ("ab --b paged=true --prompts nowhere.txt", "nowhere.txt cannot be read"),
        ("ab --b speculative=draft --target a/target", "name a --draft too"),
        ("kv --text nowhere.txt", "nowhere.txt cannot be read"),
        ("kv --target another", "name a --text"),
        ("vllm --attach no_address", "no_address"),
        ("roofline --device tpu", "device must be"),
        ("ladder --target a/target", "name a --draft too"),
        ("window --target a/target --draft a/draft", "name a --mismatched too"),
        ("gpu --device tpu", "device must be"),
        ("gpu --dtype int8", "dtype must be"),
        ("gpu --record file", "Name a folder for the runs."),
    ],
)
def test_what_is_wrong_is_reported_in_one_line_before_models_are_loaded(
    bench: Command, monkeypatch, tmp_path, capsys, arguments: str, part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    lab, loaded = command.load_engine(), []
    monkeypatch.setattr(command, "load_engine", lambda *them, **_: loaded.append(them) or lab)
    monkeypatch.setattr(command, "run_gpu", None)
    name = arguments.split()[0]
    assert bench(*arguments.split(), "--out" if name == "gpu" else "--json", "out.json") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"python -m lab.bench {name}: ")
    assert part in said
    assert said.count("\n") == 1
    assert not loaded or "whole round" in part
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["ladder", "ab --b paged=true", "window", "roofline", "logprobs", "llama"])
def test_more_tokens_than_the_context_leaves_are_refused(bench: Command, tmp_path, capsys, name: str) -> None:
    """Fewer would be decoded than the record says."""
    assert bench(*name.split(), "--max-tokens", "5000", "--json", tmp_path / "record.json") == 2
    assert f"--max-tokens 5000 is too many: {command.load_engine().target.name}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_file_of_prompts_has_one_a_line_and_no_byte_order_mark(bench: Command, monkeypatch, tmp_path) -> None:
    """The mark, which some editors write, would be a token of the first prompt. Other separators are text."""
    asked = []
    monkeypatch.setattr(command, "run_ab", lambda engine, a, b, prompts, *_, **__: asked.extend(prompts) or {})
    monkeypatch.setattr(command, "format_ab", lambda result: "")
    (file := tmp_path / "prompts.txt").write_bytes("\ufeffThe king\r\n \r\nA\u2028fox\x0c".encode())
    assert bench("ab", "--b", "kv_dtype=int8", "--prompts", file, "--json", tmp_path / "ab.json") == 0
    assert asked == ["The king", "A\u2028fox\x0c"]


@pytest.mark.parametrize("worse", [None, "a/worse"])
def test_claims_name_their_models_and_need_a_mismatched_draft(
    bench: Command, monkeypatch, tmp_path, worse: str | None
) -> None:
    """The embedded pair's is none for another target. One that is named is loaded once."""

    def run_claims(load, ids, *_: object, **__: object) -> dict:
        problems = []
        for pair in ("matched", "mismatched", "mismatched"):
            try:
                load(pair)
            except LabError as error:
                problems.append(str(error))
        return {"claims": problems}

    lab, drafts, out = command.load_engine(), [], tmp_path / "out.json"
    monkeypatch.setattr(command, "load_engine", lambda target, draft, **_: drafts.append(draft) or lab)
    monkeypatch.setattr(command, "run_claims", run_claims)
    monkeypatch.setattr(command, "format_claims", lambda result: "")
    named = ["--mismatched", worse] if worse else []
    assert bench("claims", "--target", "a/target", "--draft", "a/draft", *named, "--json", out) == 0
    assert drafts == ["a/draft", *named[1:]]
    record = json.loads(out.read_text())
    assert (record["target"], record["dtype"]) == (lab.target.name, lab.dtype)
    assert record["drafts"] == dict.fromkeys(["matched", "mismatched"][: len(drafts)], lab.draft.name)
    assert ["name a --mismatched too" in problem for problem in record["claims"]] == ([] if worse else [True, True])
