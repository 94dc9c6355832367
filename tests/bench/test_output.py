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

from lab.backends.cpu.native_support import native_step
from lab.bench import __main__ as command
from lab.bench.output import write
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


def test_a_table_is_printed_whatever_the_encoding_of_stdout(bench: Command, measured, monkeypatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    monkeypatch.setattr(command, "format_roofline", lambda result: "p − q, γ = 4")
    assert bench("roofline") == 0
    assert "p − q, γ = 4" in written.getvalue().decode()


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


def test_nan_and_infinity_are_written_as_null(tmp_path) -> None:
    write(out := tmp_path / "out.json", {"low": 1.5, "high": float("nan"), "ends": [float("inf"), -float("inf")]})
    assert out.read_text().count("null") == 3
    assert json.loads(out.read_text()) == {"low": 1.5, "high": None, "ends": [None, None]}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ladder", "--repeats", "0"], "argument --repeats: a whole number of at least 1, not '0'"),
        (["ladder", "--max-tokens", "1"], "of at least 2 (one token to wait for, one to time), not '1'"),
        (["window", "--repeats", "-1"], "argument --repeats: a whole number of at least 1, not '-1'"),
        (["window", "--repeats=--5"], "argument --repeats: a whole number of at least 1, not '--5'"),
        (["window", "--max-tokens", "1"], "of at least 2"),
        (["roofline", "--repeats", "0"], "argument --repeats: a whole number of at least 1"),
        (["roofline", "--max-tokens", "3"], "leaves no room for a whole round"),
        (["logprobs", "--repeats", "0"], "argument --repeats"),
        (
            ["logprobs", "--max-tokens", "2"],
            "of at least 3 (the prefill's, and a round of a draft token and one more), not '2'",
        ),
        (["logprobs", "--logprobs", "0"], "argument --logprobs: a whole number of at least 1"),
        (["logprobs", "--logprobs", "21"], "logprobs"),
        (["serve", "--requests", "0"], "argument --requests: a whole number of at least 1"),
        (["serve", "--repeats", "0"], "argument --repeats"),
        (["serve", "--seed", "-1"], "argument --seed: a whole number of at least 0"),
        (["ab", "--b", "paged=true", "--max-tokens", "1"], "of at least 2"),
        (["llama", "--repeats", "many"], "argument --repeats: a whole number of at least 1, not 'many'"),
    ],
)
def test_arguments_that_leave_too_little_to_measure_are_refused(
    bench: Command, tmp_path, capsys, arguments, says
) -> None:
    assert bench(*arguments, "--json", tmp_path / "out.json") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"python -m lab.bench {arguments[0]}: ")
    assert says in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_fewest_tokens_with_a_whole_round_are_enough(bench: Command, tmp_path) -> None:
    asked = ["logprobs", "--max-tokens", "3", "--repeats", "1", "--logprobs", "1", "--json", tmp_path / "out.json"]
    assert bench(*asked) == 0
    assert json.loads((tmp_path / "out.json").read_text())["steps"] > 0


@pytest.mark.parametrize("bench", ["ladder", "ab", "window", "roofline", "logprobs", "llama"])
def test_more_tokens_than_the_context_leaves_are_refused(bench: str, monkeypatch, capsys, tmp_path: Path) -> None:
    """Fewer would be decoded than the record says."""
    lab = tiny_models.engine("llama", "identical")
    monkeypatch.setattr(command, "load_engine", lambda *_, **__: lab)
    most = ["--max-tokens", "5000", "--json", str(tmp_path / "record.json")]
    monkeypatch.setattr(sys, "argv", ["bench", bench, *most, *(["--b", "paged=true"] if bench == "ab" else [])])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 2
    assert f"--max-tokens 5000 is too many: {lab.target.name} holds {tiny_models.CONTEXT}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ab", "--b", "kv_dtype=int9"], "kv_dtype must be one of"),
        (["ab", "--b", "", "--a", "speculative"], "'speculative' is not a setting"),
        (["ab", "--b", "paged=true", "--temperature", "-1"], "temperature"),
        (["ab", "--b", "paged=true", "--prompts", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["kv", "--text", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["logprobs", "--logprobs", "50"], "logprobs"),
        (["vllm", "--attach", "no address"], "no address"),
        (["roofline", "--device", "tpu"], "device must be"),
        (["ladder", "--target", "a/target"], "name a --draft too"),
        (["ab", "--b", "speculative=draft", "--target", "a/target"], "name a --draft too"),
        (["window", "--target", "a/target", "--draft", "a/draft"], "name a --mismatched too"),
    ],
    ids=" ".join,
)
def test_what_is_wrong_is_said_before_models_are_loaded(
    bench: Command, monkeypatch, tmp_path, capsys, arguments: list[str], message: str
) -> None:
    loaded: list[object] = []
    monkeypatch.setattr(command, "load_engine", lambda *them, **_: loaded.append(them))
    assert bench(*arguments, "--json", tmp_path / "out.json") == 2
    assert message in capsys.readouterr().err
    assert not loaded
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "device must be 'cpu', 'cuda' or"),
        (["--dtype", "int8"], "dtype must be 'auto', 'float32',"),
        (["--record", "a file"], "a file is a file. Name a folder for the runs."),
    ],
    ids=["device", "dtype", "record"],
)
def test_what_no_part_of_the_gpu_bench_could_do_is_refused_before_the_first(
    bench: Command, monkeypatch, tmp_path, capsys, arguments: list[str], message: str
) -> None:
    """Each part would start a process to fail in."""
    monkeypatch.chdir(tmp_path)
    Path("a file").touch()
    monkeypatch.setattr(command, "run_gpu", None)
    assert bench("gpu", *arguments, "--out", "out.json") == 2
    assert message in capsys.readouterr().err
    assert not Path("out.json").exists()


@pytest.mark.parametrize("worse", [None, "a/worse"])
def test_claims_about_a_draft_that_guesses_badly_are_left_out_where_there_is_none(
    bench: Command, monkeypatch, tmp_path, worse: str | None
) -> None:
    """The embedded pair's is none for another target. One that is named is loaded once."""
    lab, drafts, out = command.load_engine(), [], tmp_path / "out.json"
    monkeypatch.setattr(command, "load_engine", lambda target, draft, **_: drafts.append(draft) or lab)
    asked = ["claims", "--small", "--claim", "acceptance-rate", "speedup-formula", "complexity"]
    named = ["--mismatched", worse] if worse else []
    assert bench(*asked, "--target", "a/target", "--draft", "a/draft", *named, "--json", out) == 0
    assert drafts == ["a/draft", *named[1:]]
    problems = [claim.get("problem", "") for claim in json.loads(out.read_text())["claims"]]
    assert ["name a --mismatched too" in problem for problem in problems] == [not worse, not worse, False]
    assert not problems[2]


@pytest.mark.parametrize(("asked", "drafts"), [(["matched"], 1), (["matched", "mismatched"], 2)])
def test_a_record_of_claims_names_the_models_that_they_were_tested_on(
    bench: Command, monkeypatch, tmp_path, asked: list[str], drafts: int
) -> None:
    def run_claims(load, *_: object, **__: object) -> dict:
        return {"small": True, "claims": [load(pair) and [] for pair in asked]}

    lab, out = command.load_engine(), tmp_path / "out.json"
    monkeypatch.setattr(command, "run_claims", run_claims)
    monkeypatch.setattr(command, "format_claims", lambda result: "")
    assert bench("claims", "--json", out) == 0
    record = json.loads(out.read_text())
    assert (record["target"], record["dtype"]) == (lab.target.name, lab.dtype)
    assert record["drafts"] == dict.fromkeys(["matched", "mismatched"][:drafts], lab.draft.name)
