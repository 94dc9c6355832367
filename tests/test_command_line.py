"""The lab without a page: its command line."""

from __future__ import annotations

import ast
import io
import itertools
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

import lab.__main__ as command_line
from lab import EngineConfig, Run, SamplingParams, load_engine
from lab.bench import __main__ as benches
from lab.bench.compare import Spread
from lab.commands import common, compare
from lab.config_text import described
from lab.memory.capacity import Deployment
from lab.memory.catalogue import GiB
from lab.memory.lengths import Lengths
from lab.memory.models import known
from lab.options import INTERRUPTED, Parser
from lab.trace.events import Committed, Finished

ROOT = Path(__file__).parents[1]
PROMPT = "Once upon a time"
Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def engine():
    return load_engine()


@pytest.fixture
def shell(engine, monkeypatch, capsys) -> Shell:
    """Runs a command in this process, on an engine that is loaded once. Returns exit status, stdout and stderr."""
    monkeypatch.setattr(common, "load_engine", lambda *_, **__: engine)

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            status = command_line.main(list(arguments))
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run


def test_the_output_is_the_text_of_the_engine(shell: Shell, engine) -> None:
    status, out, said = shell("run", PROMPT, "--speculative", "draft", "--max-tokens", "24", "--stop", "nowhere")
    run = engine.generate(PROMPT, EngineConfig(speculative="draft"), SamplingParams(max_tokens=24))
    assert (status, out) == (0, run.text + "\n")
    assert said.startswith("24 tokens, ")
    assert "of the guesses kept. Ended by: length." in said
    assert said.count("\n") == 1
    assert shell("run", PROMPT, "--max-tokens", "1")[2].startswith("1 token, the first after ")


def test_settings_without_effect_are_reported_beside_the_answer(shell: Shell) -> None:
    status, out, said = shell("run", PROMPT, "--adaptive-window", "--logprobs", "3", "--max-tokens", "2", "--json")
    assert (status, json.loads(out)["events"][0]["config"]["adaptive_window"]) == (0, True)
    assert said.startswith("adaptive_window and logprobs do nothing where nobody guesses (speculative=off).\n2 tokens")
    command = ["compare", PROMPT, "", "adaptive_window=true", "--top-k", "5", "--repeats", "1", "--max-tokens", "2"]
    status, out, said = shell(*command)
    greedy = "top_k does nothing at temperature 0, which takes the likeliest token."
    assert said.splitlines() == [
        f"default: {greedy}",
        "adaptive_window=true: adaptive_window does nothing where nobody guesses (speculative=off).",
        f"adaptive_window=true: {greedy}",
    ]


def test_a_draft_that_nobody_asks_to_guess_is_reported(shell: Shell) -> None:
    said = "draft does nothing without speculative=draft."
    short = ["--draft", "mismatched", "--max-tokens", "2"]
    assert shell("run", PROMPT, *short, "--speculative", "ngram")[2].splitlines()[0] == said
    assert said not in shell("run", PROMPT, *short, "--speculative", "draft")[2]
    assert said not in shell("run", PROMPT, *short[2:])[2]
    assert shell("compare", PROMPT, "", "paged=true", *short, "--repeats", "1")[2].splitlines() == [said]
    assert not shell("compare", PROMPT, "", "speculative=draft", *short, "--repeats", "1")[2]


def test_a_text_cut_off_by_the_context_says_so(shell: Shell, engine) -> None:
    most = engine.context_length
    prompt = "a " * (most - 4)
    room = most - len(engine.tokenizer(prompt)["input_ids"])
    assert 2 < room < 50
    _, _, said = shell("run", prompt, "--max-tokens", "50", "--ignore-eos")
    assert f"{room} tokens" in said
    assert f"Ended by: length, for the model's context of {most:,} tokens is full." in said
    _, _, said = shell("run", prompt, "--max-tokens", str(room), "--ignore-eos")
    assert "Ended by: length." in said
    _, _, said = shell("compare", prompt, "", "kv_dtype=int8", "--max-tokens", "50", "--repeats", "1")
    assert said == f"Each run has {room} of the 50 tokens asked for: the model's context of {most:,} tokens is full.\n"
    assert not shell("compare", PROMPT, "", "kv_dtype=int8", "--max-tokens", "4", "--repeats", "1")[2]


def test_json_output_is_a_run_file(shell: Shell, tmp_path) -> None:
    settings = ["--speculative", "ngram", "--paged", "--no-kv-cache", "--kv-cache", "--kv-dtype", "int8"]
    status, out, _ = shell("run", PROMPT, "--json", *settings, "--temperature", "0.5", "--seed", "3", "--max-tokens=9")
    assert status == 0
    (tmp_path / "run.json").write_text(out, "utf-8")
    run = Run.load(tmp_path / "run.json")
    assert run.config == EngineConfig(speculative="ngram", paged=True, kv_dtype="int8")
    assert run.sampling == SamplingParams(max_tokens=9, temperature=0.5, seed=3)
    assert len(run.token_ids) == 9


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_output_is_utf_8_whatever_the_encoding_of_stdout(shell: Shell, monkeypatch, tmp_path, encoding: str) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    assert shell("run", prompt := "Café 日本", "--json", "--max-tokens", "2")[0] == 0
    (tmp_path / "run.json").write_bytes(written.getvalue())
    assert Run.load(tmp_path / "run.json").prompt == prompt


@pytest.mark.parametrize("tty", [False, True])
def test_a_comparison_shows_its_progress_on_a_terminal_only(shell: Shell, monkeypatch, tty: bool) -> None:
    monkeypatch.setattr("tests.test_command_line.sys.stderr.isatty", lambda: tty)
    _, table, said = shell("compare", PROMPT, "", "paged=true", "--repeats", "1", "--max-tokens", "4")
    assert "runs are done" not in table
    assert [f"{done} of 4 runs are done" in said for done in (1, 4)] == [tty, tty]
    assert not said or said.endswith("\r\x1b[K")


def test_a_prompt_may_begin_with_a_dash(shell: Shell) -> None:
    run = json.loads(shell("run", "--json", "--max-tokens", "2", "--", "-x")[1])
    assert run["events"][0]["prompt"] == "-x"


@pytest.mark.skipif(sys.platform == "win32", reason="arguments are no bytes there")
def test_arguments_are_read_as_utf_8_whatever_the_locale() -> None:
    """Python decodes arguments by the locale: as ASCII in the C locale, where its UTF-8 mode is off."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    read = "from lab.__main__ import commands; it = commands().parse_args(); print(ascii([it.prompt, *it.stop]))"
    command = [sys.executable, "-c", read, "run", "Café", "--stop", "é"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | plain, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout.decode()) == ["Café", "é"]


def test_metrics_are_those_of_the_run(shell: Shell) -> None:
    _, out, _ = shell("run", PROMPT, "--metrics", "--max-tokens", "5")
    assert json.loads(out)["generated_tokens"] == 5


def test_a_prompt_can_come_from_standard_input(shell: Shell, monkeypatch) -> None:
    for given, answer in ((PROMPT.encode(), 0), (b"\xff\xfe", 2), (b"", 2)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        status, _, said = shell("run", "-", "--max-tokens", "2")
        assert status == answer, said
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + PROMPT.encode())))
    _, run, _ = shell("run", "-", "--max-tokens", "2", "--json")
    assert json.loads(run)["events"][0]["prompt"] == PROMPT  # without the byte order mark that some editors add
    monkeypatch.setattr(sys, "stdin", None)
    assert shell("run", "-")[0] == 2


@pytest.mark.parametrize("command", [["run", ""], ["run", "-"], ["compare", "", "", "paged=true"]])
def test_an_empty_prompt_is_refused_before_models_are_loaded(shell: Shell, monkeypatch, command: list[str]) -> None:
    monkeypatch.setattr(common, "load_engine", None)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    said = f"python -m lab {command[0]}: The prompt is empty. Write at least one word to go on from.\n"
    assert shell(*command) == (2, "", said)


@pytest.mark.parametrize(
    "command", [["run", PROMPT, "--speculative", "draft"], ["compare", PROMPT, "", "speculative=draft"]]
)
def test_a_missing_draft_is_asked_for_before_models_are_loaded(shell: Shell, monkeypatch, command: list[str]) -> None:
    """Loading a target may take minutes."""
    monkeypatch.setattr(common, "load_engine", None)
    said = f"python -m lab {command[0]}: speculative=draft takes a draft model: name a --draft too.\n"
    assert shell(*command, "--target", "a/target") == (2, "", said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "required: prompt"),
        (["run", PROMPT, "--max-tokens", "0"], "max_tokens must be a whole number from 1"),
        (["run", PROMPT, "--max-tokens", "many"], "max_tokens must be a whole number, not 'many'"),
        (["run", PROMPT, "--temperature", "nan"], "temperature must be a number from 0.0"),
        (["run", PROMPT, "--num-blocks", "1e9"], "num_blocks must be a whole number or none"),
        (["run", PROMPT, "--kv-dtype", "int2"], "choose from"),
        (["run", PROMPT, "--no-kv-cache", "--paged"], "there are no blocks"),
        (["run", PROMPT, "--json", "--metrics"], "not allowed with"),
        (["run", "\udcff"], "argument prompt: not text in UTF-8: byte 0 begins no character. Set the terminal to"),
        (["run", PROMPT, "--stop", "a\udcff"], "argument --stop: not text in UTF-8: byte 1"),
        (["run", "-x"], "begins with a dash comes after all options and a lone --: --max-tokens 8 -- -x"),
        (["run", "--x"], "after all options and a lone --: --max-tokens 8 -- -x"),
        (["compare", "-x", "", "paged=true"], "unrecognized arguments: -x. A text that begins with a dash"),
        (["run", ""], "The prompt is empty"),
        (["run", PROMPT * 500], "Shorten the prompt"),
        (["compare", PROMPT, "paged=true"], "2 to 5 settings"),
        (["compare", PROMPT, "", "--target", "not loaded"], "2 to 5 settings"),
        (["compare", PROMPT, "", ""], "listed twice"),
        (["compare", PROMPT, "", "speed=high"], "there is no setting 'speed'"),
        (["compare", PROMPT, "", "paged=true", "--repeats", "0"], "takes at least one repeat"),
        (["compare", PROMPT, "", "paged=true", "--stop", "x"], "unrecognized arguments: --stop x"),
        (["fit", "../../no such place"], "There is no folder '../../no such place' here. Name one with config.json"),
        (["fit", str(ROOT / "app.py")], "app.py' is a file. Name the folder that it lies in."),
        (["fit", str(ROOT)], f"There is no config.json in {ROOT}. A model's folder holds config.json"),
        (["fit", "gpt-2", "--memory", "nan"], "memory must be a device's GiB"),
        (["fit", "gpt-2", "--memory", "1e300"], "at most"),
        (["fit", "gpt-2", "--mean", "9000"], "The mean length"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(shell: Shell, arguments: list[str], said: str) -> None:
    status, out, line = shell(*arguments)
    assert (status, out) == (2, "")
    assert said in line
    assert line.count("\n") == 1


def test_a_tilde_stands_for_the_home_folder(shell: Shell, monkeypatch, tmp_path) -> None:
    loaded = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(common, "load_engine", lambda *where, **how: loaded.extend(where) or load_engine())
    shell("run", PROMPT, "--target=~/model", "--draft=~/draft", "--max-tokens", "1")
    assert loaded == [str(tmp_path / "model"), str(tmp_path / "draft")]
    assert f"There is no folder '{tmp_path / 'model'}' here" in shell("fit", "~/model")[2]


@pytest.mark.parametrize("settings", [EngineConfig, SamplingParams])
def test_help_describes_every_setting(shell: Shell, settings: type) -> None:
    about = described(settings)
    assert set(about) == {field.name for field in fields(settings)}
    assert all(about.values())
    _, out, _ = shell("run", "--help")
    assert all(f"--{name.replace('_', '-')} " in out for name in about)


def test_the_help_of_a_comparison_tells_its_own_default_seed(shell: Shell) -> None:
    """All its runs share one: none is picked anew."""
    said = " ".join(shell("compare", "--help")[1].split())
    assert "--seed N of the random draws of every run. Default: 0." in said
    assert "picks one" not in said
    short = ["compare", PROMPT, "", "paged=true", "--repeats", "1", "--max-tokens", "2", "--json"]
    assert [json.loads(shell(*short, *given)[1])["sampling"]["seed"] for given in ([], ["--seed", "7"])] == [0, 7]
    assert "seed must be a whole number from 0" in shell(*short, "--seed", "-1")[2]


@pytest.mark.parametrize("made", [command_line.commands, benches.commands], ids=["lab", "lab.bench"])
def test_help_describes_every_option_and_its_default(made: Callable[[], Parser]) -> None:
    (by_name,) = (action.choices for action in made()._actions if isinstance(action.choices, dict))
    for name, command in by_name.items():
        for option in (action for action in command._actions if action.option_strings):
            said = (name, option.option_strings[-1], option.help)
            assert option.help, said
            assert option.nargs == 0 or "Default: " in option.help or "Required." in option.help, said


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
        (["speculative=draft", "speculative=draft, num_speculative_tokens=2"], "0.8", True),
        ([f"speculative=early_exit, early_exit_layer={layer}" for layer in (1, 3)], "0.8", True),
        (["speculative=draft", "speculative=draft, kv_dtype=int4"], "0.8", False),
        (["", "kv_dtype=int4"], "0.8", False),
        (["", "speculative=synthetic, kv_dtype=int4"], "0.8", False),
        (["speculative=draft", "kv_dtype=int4"], "0", False),
        (["", "speculative=draft"], "0", False),
    ],
)
def test_above_temperature_0_other_tokens_by_speculation_are_no_difference_in_quality(
    shell: Shell, settings: list[str], temperature: str, said: bool
) -> None:
    how = ["--repeats", "1", "--max-tokens", "48", "--temperature", temperature]
    for answer in ([], ["--json"]):
        _, out, notes = shell("compare", PROMPT, *settings, *how, *answer)
        assert notes.startswith("Above temperature 0, ") == notes.endswith("no difference in quality.\n") == said
        assert "All wrote" not in out or not said


def test_figures_are_printed_though_the_last_question_is_interrupted(shell: Shell, monkeypatch) -> None:
    def interrupted(*about):
        raise KeyboardInterrupt

    monkeypatch.setattr(compare, "first_differences", interrupted)
    command = ["compare", PROMPT, "", "speculative=draft", "--repeats", "1", "--max-tokens", "4"]
    status, table, said = shell(*command)
    assert status == INTERRUPTED
    assert [line.split()[-1] for line in table.splitlines()[1:]] == ["default", "speculative=draft"]
    assert said.endswith("Interrupted.\n")
    answer = json.loads(shell(*command, "--json")[1])
    assert answer["settings"]["speculative=draft"]["acceptance"] > 0


def test_figures_are_printed_though_the_last_question_cannot_be_answered(shell: Shell, monkeypatch) -> None:
    """Reading the texts again takes memory beside the caches, which may fill a GPU."""

    def full(*about):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.16 GiB.")

    monkeypatch.setattr(compare, "first_differences", full)
    command = ["compare", PROMPT, "", "speculative=draft", "--repeats", "1", "--max-tokens", "4"]
    status, table, said = shell(*command)
    assert status == 1
    assert [line.split()[-1] for line in table.splitlines()[1:]] == ["default", "speculative=draft"]
    assert said.startswith("Whether all wrote the same could not be found out: The device ran out of memory.")
    answer = json.loads(shell(*command, "--json")[1])
    assert (len(answer["settings"]), answer["differences"]) == (2, None)


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


@pytest.mark.parametrize(
    ("repeats", "said"), [("1", r"x\d+\.\d\d, one run +kv_dtype"), ("2", r"(x\d+\.\d\d|unclear) +kv")]
)
def test_a_speed_up_from_one_run_is_marked_as_such(shell: Shell, repeats: str, said: str) -> None:
    _, table, _ = shell("compare", PROMPT, "", "kv_dtype=int8", "--repeats", repeats, "--max-tokens", "4")
    usual, other = table.splitlines()[1:3]
    assert re.search(r"x1\.00 +default", usual), "the first setting is compared with itself, which needs no remark"
    assert re.search(said, other)


def test_a_slow_models_speeds_are_told_apart(shell: Shell, monkeypatch) -> None:
    """A large model on a CPU takes longer than a second for a token."""
    slow = Spread(0.3619, 0.4249, 0.4871)
    found = compare.summarise
    monkeypatch.setattr(
        compare,
        "summarise",
        lambda runs: {name: replace(one, tokens_per_second=slow) for name, one in found(runs).items()},
    )
    _, table, _ = shell("compare", PROMPT, "", "paged=true", "--repeats", "1", "--max-tokens", "4")
    assert [line.split()[:4] for line in table.splitlines()[1:3]] == [["0.425", "0.362", "to", "0.487"]] * 2
    whole = Run.metrics.func
    monkeypatch.setattr(Run, "metrics", property(lambda run: replace(whole(run), tokens_per_second=0.4249)))
    assert ", 0.425 a second, " in shell("run", PROMPT, "--max-tokens", "4")[2]


def test_fit_agrees_with_the_calculator(shell: Shell) -> None:
    model, lengths = known()["llama-3.1-8b"], Lengths(500, 4096)
    expected = Deployment(shape=model.shape, parameters=model.parameters, memory=80 * GiB, lengths=lengths)
    answer = json.loads(shell("fit", "llama-3.1-8b", "--json")[1])
    assert answer["sequences"] == {policy: expected.sequences(policy) for policy in ("contiguous", "paged")}
    assert answer == json.loads(shell("fit", "llama-3.1-8b", "--memory", "80", "--json")[1])
    assert f"{answer['sequences']['paged']:,} sequences" in shell("fit", "llama-3.1-8b")[1]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["llama-3.1-8b"], ""),
        (["llama-3.1-70b"], "The weights take 141,107,412,992 B, 63,798,001,664 B more than the 77,309,411,328 B"),
        (["llama-3.1-8b", "--gpu", "l4", "--longest", "131072"], "Not one sequence of 131,072 tokens fits"),
        (["gpt-2"], "GPT-2 was made for 1,024 positions; the longest sequence here has 4,096."),
    ],
)
def test_fit_states_its_assumed_lengths_and_why_nothing_fits(shell: Shell, asked: list[str], said: str) -> None:
    _, out, note = shell("fit", *asked)
    longest = "131,072" if "131072" in asked else "4,096"
    assert f"A sequence has 500 tokens on average (--mean) and at most {longest} (--longest)" in out
    assert note.startswith(said) if said else not note
    assert not shell("fit", *asked, "--json")[0]
    assert "A sequence has 1 token on average" in shell("fit", *asked, "--mean", "1")[1]


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
