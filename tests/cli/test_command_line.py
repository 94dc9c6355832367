"""The lab without a page: its command line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable

import pytest

import lab.__main__ as command_line
from lab import EngineConfig, Run, SamplingParams
from lab.bench import __main__ as benches
from lab.cli import commands
from lab.cli.arguments import Parser
from lab.memory.capacity import Deployment, Lengths
from lab.memory.catalogue import GiB
from lab.memory.model_memory import known_models
from tests.cli.conftest import PROMPT, ROOT, Shell


@pytest.mark.parametrize("made", [command_line.commands, benches.commands], ids=["lab", "lab.bench"])
def test_help_describes_every_option_and_its_default(made: Callable[[], Parser]) -> None:
    (by_name,) = (action.choices for action in made()._actions if isinstance(action.choices, dict))
    for name, command in by_name.items():
        for option in (action for action in command._actions if action.option_strings):
            said = (name, option.option_strings[-1], option.help)
            assert option.help, said
            assert option.nargs == 0 or option.required or "Default: " in option.help, said


SHORT = ["--max-tokens", "2"]
COMPARE = ["compare", PROMPT, "", "paged=true", "--repeats", "1", *SHORT]


def test_the_output_is_the_text_of_the_engine(shell: Shell, engine) -> None:
    status, out, notes = shell("run", PROMPT, "--speculative", "draft", "--max-tokens", "24", "--stop", "nowhere")
    run = engine.generate(PROMPT, EngineConfig(speculative="draft"), SamplingParams(max_tokens=24))
    assert (status, out) == (0, run.text + "\n")
    assert notes.startswith("24 tokens, ")
    assert notes.count("\n") == 1
    assert shell("run", PROMPT, "--max-tokens", "1")[2].startswith("1 token, the first after ")
    assert json.loads(shell("run", PROMPT, "--metrics", *SHORT)[1])["generated_tokens"] == 2


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["run", PROMPT, "--adaptive-window", "--logprobs", "3", *SHORT], ["adaptive_window", "logprobs"]),
        ([*COMPARE, "--top-k", "5"], ["default: top_k", "paged=true: top_k"]),
        (["run", PROMPT, "--draft", "mismatched", "--speculative", "ngram", *SHORT], ["draft does nothing"]),
        ([*COMPARE, "--draft", "mismatched"], ["draft does nothing"]),
        (["run", PROMPT, "--draft", "mismatched", "--speculative", "draft", *SHORT], []),
        ([*COMPARE[:2], "speculative=draft", *COMPARE[3:], "--draft", "mismatched"], []),
    ],
)
def test_settings_without_effect_are_reported_beside_the_answer(shell: Shell, arguments, names) -> None:
    status, out, notes = shell(*arguments)
    assert (status, bool(out)) == (0, True)
    assert all(name in notes for name in names)
    assert ("does nothing" in notes or "do nothing" in notes) == bool(names)


def test_a_text_cut_off_by_the_context_is_reported(shell: Shell, engine, monkeypatch) -> None:
    room, full = 5, "context of 16 tokens is full"
    prompt = engine.tokenizer.decode(engine.tokenizer(PROMPT * 9)["input_ids"][: 16 - room])
    assert len(engine.tokenizer(prompt)["input_ids"]) == 16 - room
    monkeypatch.setattr(engine.target, "context_length", 16)
    notes = shell("run", prompt, "--max-tokens", "50", "--ignore-eos")[2]
    assert f"{room} tokens" in notes
    assert full in notes
    assert full not in shell("run", prompt, "--max-tokens", str(room), "--ignore-eos")[2]
    notes = shell("compare", prompt, "", "kv_dtype=int8", "--max-tokens", "50", "--repeats", "1")[2]
    assert f"has {room} of the 50 tokens" in notes
    assert full in notes


def test_a_prompt_may_be_token_ids_and_notes_are_reported(shell: Shell, engine) -> None:
    ids = engine.tokenizer(PROMPT)["input_ids"]
    for command in (["run"], ["compare", "", "paged=true", "--repeats", "1"]):
        status, out, notes = shell(command[0], f"0,0,{','.join(map(str, ids))}", *command[1:], "--token-ids", *SHORT)
        assert (status, bool(out)) == (0, True)
        assert "begins with <|endoftext|> twice" in notes
    assert shell("run", str(ids), "--token-ids", *SHORT)[1] == shell("run", PROMPT, *SHORT)[1]
    assert "'one' is not a token id" in shell("run", "one", "--token-ids")[2]
    stop = engine.generate(PROMPT, sampling=SamplingParams(max_tokens=1)).token_ids[0]
    assert "Ended by: stop" in shell("run", PROMPT, "--stop-token-ids", str(stop), "--stop-token-ids", "1")[2]
    assert "whole number" in shell("run", PROMPT, "--stop-token-ids", "x")[2]


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_json_output_is_a_run_file_in_utf_8(shell: Shell, monkeypatch, tmp_path, encoding: str) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    settings = ["--speculative", "ngram", "--paged", "--no-kv-cache", "--kv-cache", "--kv-dtype", "int8"]
    sampling = ["--temperature", "0.5", "--seed", "3", "--max-tokens=9"]
    assert shell("run", "--json", *settings, *sampling, "--", prompt := "-x Café 日本")[0] == 0
    (tmp_path / "run.json").write_bytes(written.getvalue())
    run = Run.load(tmp_path / "run.json")
    assert run.prompt == prompt
    assert run.config == EngineConfig(speculative="ngram", paged=True, kv_dtype="int8")
    assert run.sampling == SamplingParams(max_tokens=9, temperature=0.5, seed=3)
    assert len(run.token_ids) == 9


def test_a_prompt_can_come_from_standard_input(shell: Shell, monkeypatch) -> None:
    # Some editors add a byte order mark.
    for given, answer in ((b"\xef\xbb\xbf" + PROMPT.encode(), 0), (b"\xff\xfe", 2), (b"", 2), (None, 2)):
        monkeypatch.setattr(sys, "stdin", given if given is None else io.TextIOWrapper(io.BytesIO(given)))
        status, run, notes = shell("run", "-", *SHORT, "--json")
        assert status == answer, notes
        assert status or json.loads(run)["events"][0]["prompt"] == PROMPT


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["run"], "required: prompt"),
        (["run", PROMPT, "--max-tokens", "0"], "max_tokens"),
        (["run", PROMPT, "--max-tokens", "many"], "max_tokens"),
        (["run", PROMPT, "--temperature", "nan"], "temperature"),
        (["run", PROMPT, "--num-blocks", "1e9"], "num_blocks"),
        (["run", PROMPT, "--kv-dtype", "int2"], "int2"),
        (["run", PROMPT, "--no-kv-cache", "--paged"], "blocks"),
        (["run", PROMPT, "--json", "--metrics"], "not allowed with"),
        (["run", PROMPT, "--speculative", "draft", "--target", "a/target"], "--draft"),  # loading takes minutes
        (["compare", PROMPT, "", "speculative=draft", "--target", "a/target"], "--draft"),
        (["run", PROMPT, "--speculative", "eagle3", "--target", "a/target"], "--head"),
        (["run", PROMPT, "--stop", "a\udcff"], "stop must be valid text"),
        (["run", "-x"], "-- -x"),
        (["run", "--x"], "-- -x"),
        (["compare", "-x", "", "paged=true"], "A text that begins with a dash"),
        (["run", ""], "prompt is empty"),
        (["compare", "", "", "paged=true"], "prompt is empty"),
        (["compare", PROMPT, "paged=true"], "2 to 6 settings"),
        (["compare", PROMPT, "", ""], "listed twice"),
        (["compare", PROMPT, "", "speed=high"], "'speed'"),
        (["compare", PROMPT, "", "paged=true", "--repeats", "0"], "repeat"),
        (["compare", PROMPT, "", "paged=true", "--stop", "x"], "--stop x"),
        (["fit", "../../no such place"], "There is no folder '../../no such place'"),
        (["fit", str(ROOT / "app.py")], "is a file"),
        (["fit", str(ROOT)], "no config.json"),
        (["fit", "gpt-2", "--memory", "nan"], "memory"),
        (["fit", "gpt-2", "--memory", "1e300"], "at most"),
        (["fit", "gpt-2", "--mean", "9000"], "mean length"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line_before_models_are_loaded(
    shell: Shell, monkeypatch, arguments: list[str], word: str
) -> None:
    monkeypatch.setattr(commands, "load_engine", None)
    status, out, line = shell(*arguments)
    assert (status, out) == (2, "")
    assert word in line
    assert line.count("\n") == 1


def test_fit_agrees_with_the_calculator(shell: Shell) -> None:
    model, lengths = known_models()["llama-3.1-8b"], Lengths(500, 4096)
    expected = Deployment(shape=model.shape, parameters=model.parameters, memory=80 * GiB, lengths=lengths)
    answer = json.loads(shell("fit", "llama-3.1-8b", "--json")[1])
    assert answer["sequences"] == {policy: expected.sequences(policy) for policy in ("contiguous", "paged")}
    assert answer == json.loads(shell("fit", "llama-3.1-8b", "--memory", "80", "--json")[1])
    assert f"{answer['sequences']['paged']:,} sequences" in shell("fit", "llama-3.1-8b")[1]


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        (["llama-3.1-8b"], ""),
        (["llama-3.1-70b"], "141,107,412,992 B, and 77,309,411,328 B"),
        (["llama-3.1-8b", "--gpu", "l4", "--longest", "131072"], "131,072 tokens"),
        (["gpt-2"], "1,024 positions"),
    ],
)
def test_fit_states_its_assumed_lengths_and_why_nothing_fits(shell: Shell, asked: list[str], word: str) -> None:
    _, out, notes = shell("fit", *asked)
    longest = "131,072" if "131072" in asked else "4,096"
    assert f"A sequence has 500 tokens on average (--mean) and at most {longest} (--longest)" in out
    assert word in notes if word else not notes
