"""What the README claims is what was measured, and what is pinned."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from lab.engines import LISTED
from lab.memory.models import known

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_ladder_is_the_recorded_one():
    result = json.loads((ROOT / "docs/bench/ladder-cpu.json").read_text("utf-8"))
    recorded = {row["name"]: row for row in result["ladder"] + result["gammas"]}
    base = next(row["median"] for row in result["ladder"] if row["name"] == "cache")
    shown = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) to (\d+) \| ([\d.]+) \|$", README, re.MULTILINE)
    assert {name for name, *_ in shown} == {row["name"] for row in result["ladder"]}
    for name, median, lower, upper, ratio in shown:
        row = recorded[name]
        assert [int(median), int(lower), int(upper)] == [round(row[key]) for key in ("median", "lower", "upper")]
        assert float(ratio) == round(row["median"] / base, 2)


def record(bench: str) -> dict:
    return json.loads((ROOT / f"docs/bench/{bench}-cpu.json").read_text("utf-8"))


def serving() -> list[str]:
    rows = []
    for name, row in record("serve")["throughput"].items():
        gaps = f"{row['itl_p50_ms']:.1f} / {row['itl_p99_ms']:.1f}"
        flying = f"{row['mean_sequences']:.1f}" if "mean_sequences" in row else ""
        rows.append(f"| {name} | {row['tokens_per_second']:.0f} | {row['ttft_p50_ms']:.0f} | {gaps} | {flying} |")
    return rows


def growth() -> list[str]:
    result = record("serve")

    def cell(size: str, temperature: str) -> str:
        off, on = (
            result["growth"][f"{size} at once, temperature {temperature}, speculation {way}"]["tokens_per_second"]
            for way in ("off", "draft")
        )
        return f"{off:.0f}, {on:.0f}: {on / off:.2f}"

    sizes = result["speculation"]["temperature 0"]["ratio_by_size"]
    return [f"| {size} | {cell(size, '0')} | {cell(size, '0.8')} |" for size in sizes]


def memory() -> list[str]:
    return [
        f"| {name} | {row['most_sequences']} | {row['mean_sequences']:.1f} | {row['wasted_share']:.0%} "
        f"| {row['preemptions']} | {row['tokens_per_second']:.0f} |"
        for name, row in record("serve")["memory"].items()
    ]


def formats() -> list[str]:
    rows = []
    for row in record("kv-error")["formats"]:
        off = f"{row['key_error']:.2%} | {row['value_error']:.2%}"
        rows.append(
            f"| {row['kv_dtype']} | {row['bytes_per_token']:,} | {off} | {row['perplexity']:.2f} "
            f"| {row['kl']['value']:.2g} |"
        )
    return rows


def steps() -> list[str]:
    return [
        f"| {row['name']} | {row['bytes'] / 1e6:.0f} | {row['flops'] / 1e6:.0f} | {row['ms']:.2f} | {row['share']:.0%} "
        f"| {row['bound']} | {row['step_ms']:.2f} |"
        for row in record("roofline")["rows"]
    ]


def beside() -> list[str]:
    """Of each row its speed on one thread and on two, each with its ratio to llama.cpp's."""

    def cells(rows: list[dict]) -> list[str]:
        base = next(row["median"] for row in rows if row["name"] == "llama.cpp, bf16")
        return [
            f"{row['median']:.0f} | {row['lower']:.0f} to {row['upper']:.0f} | x {row['median'] / base:.2f}"
            for row in rows
        ]

    one, two = record("llama")["rows"], record("llama-2-threads")["rows"]
    return [
        f"| {row['name']} | {alone} | {both} |" for row, alone, both in zip(one, cells(one), cells(two), strict=True)
    ]


@pytest.mark.parametrize("table", [serving, growth, memory, formats, steps, beside], ids=lambda table: table.__name__)
def test_every_row_is_the_recorded_one(table):
    for row in table():
        assert row + "\n" in README


def test_the_figures_in_sentences_are_the_recorded_ones():
    serve, window = record("serve"), record("window")["ratios"]["mix"]
    text = " ".join(README.split())
    one_length = serve["ratios"]["16 of one length at once / one"]
    mixed = serve["ratios"]["batched paged / one after another"]
    left = serve["throughput"]["batched paged"]["mean_sequences"]
    assert f"give {one_length:.1f} times the tokens a second of one" in text
    assert f"only {mixed:.1f}, because on average only {left:.0f} are left" in text
    assert f"{window['to_best']:.2f} times the best fixed gamma ({window['best']})" in text
    assert f"{window['to_worst']:.2f} times the worst ({window['worst']})" in text
    recorded, added = record("logprobs"), record("logprobs")["added_ms"]
    assert f"Recording the {recorded['logprobs']} likeliest tokens around every verdict adds " in text
    assert f"adds {added['median']:.2f} ms to a round of {recorded['plain_ms']:.1f} ms (quartiles " in text
    assert f"(quartiles {added['lower']:.2f} to {added['upper']:.2f})" in text
    assert f"over {record('kv-error')['scored_tokens']:,} tokens of two books" in text


def test_what_watching_costs_is_the_recorded_one():
    figures, text = record("page")["figures"], " ".join(README.split())
    assert f"{figures['live_frames_per_second']:.1f} pictures a second while a run goes on" in text
    assert f"{figures['live_bytes_per_second'] / 1000:.0f} kB a second are sent" in text
    player, slowed = (
        [figures[f"player_{name}frames_per_second_{way}"] for way in ("off", "draft")] for name in ("", "slowed_")
    )
    assert f"at true speed {player[0]:.0f} without speculation and {player[1]:.0f} with it" in text
    passes = [figures[f"player_slowed_instants_per_second_{way}"] for way in ("off", "draft")]
    assert f"slowed down to {passes[0]:.0f} and {passes[1]:.0f} passes a second" in text
    assert f"a second {slowed[0]:.0f} and {slowed[1]:.0f};" in text
    assert f"the first token {figures['first_token_late_ms']:.0f} ms after" in text
    for name in ("", "_told", "_moving_neighbour"):
        quartiles = [100 * figures[f"slow_down{name}_{quartile}"] for quartile in ("q1", "q3")]
        assert f"{figures[f'slow_down{name}']:.0%} ({quartiles[0]:.0f} to {quartiles[1]:.0f})" in text
    assert f"and {figures['heap_growth_mb']:.1f} MB in the page" in text


def test_what_a_workshop_costs_is_the_recorded_one():
    result, text = record("workshop"), " ".join(README.split())
    medians = result["percent_of_a_core"]["medians"]
    assert f"moves ten times a second takes {medians['leading']:.1f}% of a core" in text
    assert f"with {result['followers']} followers {medians['followed']:.1f}%" in text
    assert f"nobody doing anything takes {medians['idle']:.1f}%" in text
    assert (result["hz"], result["messages_arrived"]) == (10, 1)


def test_what_a_crowd_gets_is_the_recorded_one():
    result, text = record("load"), " ".join(README.split())
    assert (result["clients"], result["minutes"], result["crossed"]) == (30, 5, [])
    assert f"got {result['answers']} answers" in text
    assert f"and {len(result['errors']) or 'no'} errors" in text
    assert f"the longest wait was {result['waits_ms']['ratio']:.1f} times the median" in text
    assert not any(result["left"].values())
    memory = result["memory_mb"]
    assert f"took {memory['after']:.0f} MB where it took {memory['after_warm_up']:.0f} after" in text


@pytest.mark.parametrize(("name", "threads"), [("llama", 1), ("llama-2-threads", 2)])
def test_what_llama_cpp_says_too_is_the_recorded_one(name, threads):
    result, text = record(name), " ".join(README.split())
    assert result["machine"]["torch_threads"] == threads
    same = sum(length == result["max_tokens"] for length in result["alike"]["bf16"])
    assert f"the same {result['max_tokens']} tokens after {same} of {result['prompts']} prompts" in text


def test_what_fits_is_what_it_prints(capsys):
    [example] = re.findall(r"```python\n(from lab\.memory.+?)```", README, re.DOTALL)
    exec(example)
    assert capsys.readouterr().out.strip() == example.strip().rsplit("# ", 1)[1]


def test_the_command_for_a_server_is_one(capsys):
    [example] = re.findall(r"```python\n(from lab import EngineConfig\nfrom lab\.remote.+?)```", README, re.DOTALL)
    exec(example)
    said = capsys.readouterr().out
    assert said.startswith("vllm serve Qwen/Qwen3-8B ")
    assert "--tensor-parallel-size 2" in said
    assert "int8_per_token_head has a scale per token" in said


def test_the_space_uses_the_pinned_gradio():
    pinned = re.search(r"^gradio==(.+)$", (ROOT / "requirements.txt").read_text("utf-8"), re.MULTILINE)
    assert f"sdk_version: {pinned[1]}\n" in README


def test_the_spaces_header_is_whole():
    header = yaml.safe_load(README.split("---\n")[1])
    assert header["sdk"] == "gradio"
    assert (ROOT / header["app_file"]).exists()
    assert header["python_version"] in ("3.10", "3.12")  # what ZeroGPU has
    assert len(header["short_description"]) <= 60
    assert header["tags"]
    listed = {known()[name].hub for pair in LISTED.items() for name in pair}
    assert set(header["preload_from_hub"]) == set(header["models"]) <= listed


def test_every_path_it_names_exists():
    for path in re.findall(r"\]\(([\w./-]+)\)", README) + re.findall(r"^\| `([\w./]+)`", README, re.MULTILINE):
        assert (ROOT / path).exists(), path
