"""The lab without a page: its command line."""

from __future__ import annotations

import ast
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields

import pytest

import lab.__main__ as command_line
from lab import EngineConfig, Run, SamplingParams, load_engine
from lab.bench import __main__ as benches
from lab.cli import common
from lab.cli.arguments import Parser
from lab.config_parse import described
from lab.memory.capacity import Deployment, Lengths
from lab.memory.catalogue import GiB
from lab.memory.model_memory import known_models
from tests.cli.conftest import PROMPT, ROOT, Shell


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


@pytest.mark.parametrize("made", [command_line.commands, benches.commands], ids=["lab", "lab.bench"])
def test_help_describes_every_option_and_its_default(made: Callable[[], Parser]) -> None:
    (by_name,) = (action.choices for action in made()._actions if isinstance(action.choices, dict))
    for name, command in by_name.items():
        for option in (action for action in command._actions if action.option_strings):
            said = (name, option.option_strings[-1], option.help)
            assert option.help, said
            assert option.nargs == 0 or "Default: " in option.help or "Required." in option.help, said


def test_fit_agrees_with_the_calculator(shell: Shell) -> None:
    model, lengths = known_models()["llama-3.1-8b"], Lengths(500, 4096)
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
