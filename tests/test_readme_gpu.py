"""What the README and the measurements say of GPUs agrees with their records."""

from __future__ import annotations

import json

import pytest

from lab import Run
from lab.bench.gpu.attention_bench import CONTEXTS
from lab.bench.gpu.long_tail import LENGTHS, REQUESTS
from tests.test_readme import MEASURED, README, ROOT, flat

EARLIER, LATER = (json.loads((ROOT / f"docs/bench/gpu-h100{name}.json").read_text("utf-8")) for name in ("", "-early"))
"""Two calls of the bench. The later one has no part 4, and repeats neither all of part 1 nor of speculation."""

H200, FIRST = (json.loads((ROOT / f"docs/bench/gpu-h200{name}.json").read_text("utf-8")) for name in ("", "-first"))
"""Two calls as well. The later one has no part 1."""

BY_HAND = "0.64"
"""32.7 microseconds over 51.2."""


def gpu(record: dict) -> dict[str, dict]:
    """The results of its parts."""
    return {part: entry["result"] for part, entry in record["parts"].items()}


def large(record: dict) -> list[str]:
    return [
        f"| {name} | {row['tokens_per_second']:.1f} | {row['gb_per_second']:.0f} | {row['of_copy']:.0%} "
        f"| {row['of_copy_in_pass']:.0%} |"
        for name, row in gpu(record)["2"]["decode"].items()
    ]


def speculation(record: dict) -> list[str]:
    rows = {(row["gamma"], row["acceptance"]): row for row in gpu(record)["2"]["speculation"]}
    assert len(rows) == 24

    def cell(gamma: int, rate: float) -> str:
        return f"{rows[gamma, rate]['speedup']:.2f} ({rows[gamma, rate]['formula']:.2f})"

    return [f"| {gamma} | {' | '.join(cell(gamma, rate) for rate in (0.5, 0.7, 0.9))} |" for gamma in range(1, 9)]


def attention(record: dict) -> list[str]:
    cases = {(c["context"], c["batch"], c["format"], c["blocks"]): c for c in gpu(record)["3"]["cases"]}
    others = ("auto", "paged"), ("int8", "paged"), ("int4", "paged"), ("auto", "sdpa")
    rows = []
    for context, batch in sorted({key[:2] for key in cases}):
        native = cases[context, batch, "auto", "contiguous"]
        cells = [f"{native['gb_per_second']:.0f}"]
        for other in others:
            case = cases[context, batch, *other]
            cells.append(f"{case['gb_per_second']:.0f} ({case['microseconds'] / native['microseconds']:.2f})")
        rows.append(f"| {context:,} x {batch} | {' | '.join(cells)} |")
    return rows


def capacity(record: dict) -> list[str]:
    return [
        f"| {name} | {row['most_sequences']} | {row['mean_sequences']:.0f} | {row['wasted_share']:.0%} "
        f"| {row['preemptions']} | {row['tokens_per_second']:.0f} |"
        for name, row in gpu(record)["4"]["rows"].items()
    ]


def prefill(record: dict) -> list[str]:
    return [
        f"| {row['attention']}, {row['layers']} layers | {row['milliseconds']:.0f} | {row['peak_bytes'] / 1e9:.1f} |"
        for row in gpu(record)["2"]["prefill"].values()
    ]


def pair(record: dict) -> list[str]:
    often, once = gpu(record)["1"]["static"], gpu(record)["1"]["rows"]
    assert {row["samples"] for row in often.values()} == {4}
    assert {row["samples"] for row in once.values()} == {1}
    rows = [f"| {name} | {r['median']:.0f} | {r['lower']:.0f} to {r['upper']:.0f} |" for name, r in often.items()]
    return rows + [f"| {name} | {row['median']:.0f} |" for name, row in once.items()]


def over_formula(record: dict) -> str:
    over = [row["measured_over_formula"] for row in gpu(record)["2"]["speculation"]]
    return f"{min(over):.2f} to {max(over):.2f}"


def of_native(record: dict, kind: str, kept: str, context: int = 32_768) -> dict[int, str]:
    """Times over those of the contiguous cache in bfloat16, by batch."""
    rows = gpu(record)["3"]["ratios"]
    wanted = context, kind, kept
    return {r["batch"]: f"{r['of_native']:.2f}" for r in rows if (r["context"], r["format"], r["blocks"]) == wanted}


def over_generate(record: dict) -> str:
    often = gpu(record)["1"]["static"]
    return f"{often['cache']['median'] / often['transformers generate']['median']:.1f} times"


def goals_on_an_h100(_: dict) -> list[str]:
    assert float(over_formula(EARLIER).split()[0]) >= 0.9
    assert max(float(paged) for c in CONTEXTS for paged in of_native(LATER, "auto", "paged", c).values()) <= 1.02
    int8 = of_native(LATER, "int8", "paged")
    return [
        f"| batch 1: 85% of a copy's bandwidth | {gpu(LATER)['2']['decode']['decode']['of_copy']:.0%} |",
        f"| the pair: five times `generate` with its dynamic cache | {over_generate(EARLIER)} |",
        "| INT8 at 32k in at most 0.6 of native's time "
        f"| {int8[8]} and {int8[32]} for 8 and 32 sequences, {int8[1]} for one, {BY_HAND} by hand |",
        "| speed-ups within 10% of the formula "
        f"| {over_formula(EARLIER)} of it; with the slower host {over_formula(LATER)} |",
    ]


def goals_on_an_h200(_: dict) -> list[str]:
    int8 = of_native(H200, "int8", "paged")
    assert float(over_formula(H200).split()[0]) >= 0.9
    assert gpu(H200)["2"]["decode"]["decode"]["of_copy"] >= 0.85
    assert max(float(paged) for c in CONTEXTS for paged in of_native(H200, "auto", "paged", c).values()) <= 1.01
    return [
        f"| batch 1: 85% of a copy's bandwidth | {gpu(H200)['2']['decode']['decode']['of_copy']:.0%} |",
        f"| the pair: five times `generate` with its dynamic cache | {over_generate(FIRST)} |",
        "| INT8 at 32k in at most 0.6 of native's time "
        f"| {int8[1]}, {int8[8]} and {int8[32]} for 1, 8 and 32 sequences |",
        "| paged within 5% of contiguous | within 1% |",
        f"| speed-ups within 10% of the formula | {over_formula(H200)} of it |",
    ]


def headlines(_: dict) -> list[str]:
    """The rows in the README itself."""
    rows = []
    for name, record in (("H100", LATER), ("H200", H200)):
        decode = gpu(record)["2"]["decode"]["decode"]
        rows.append(
            f"| On an {name}, a model of Llama 3.1 8B's shape, one sequence "
            f"| {decode['tokens_per_second']:.1f} tokens/s: {decode['of_copy']:.0%} of the bandwidth of a copy |"
        )
    int8 = of_native(H200, "int8", "paged")
    return [
        *rows,
        "| On an H200, attention over 32,768 tokens of 1 and of 32 sequences, one layer "
        f"| INT8 {int8[1]} and {int8[32]} times the time of bfloat16 |",
    ]


@pytest.mark.parametrize(
    ("table", "record"),
    [
        (large, LATER),
        (speculation, EARLIER),
        (attention, LATER),
        (capacity, EARLIER),
        (prefill, LATER),
        (pair, EARLIER),
        (goals_on_an_h100, {}),
        *((table, H200) for table in (large, speculation, attention, capacity, prefill)),
        (pair, FIRST),
        (goals_on_an_h200, {}),
        (headlines, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_row_is_the_recorded_one(table, record):
    page = README if table is headlines else MEASURED
    for row in table(record):
        assert row + "\n" in page


def test_the_gpu_is_the_recorded_one():
    machine, text = LATER["machine"], flat(MEASURED)
    same = "accelerator", "driver", "torch", "cuda", "transformers", "triton"
    assert [EARLIER["machine"][name] for name in same] == [machine[name] for name in same]
    versions = f"driver {machine['driver']}, torch {machine['torch'].partition('+')[0]} (CUDA {machine['cuda']})"
    told = (
        f"One {machine['accelerator']}, {versions}, transformers {machine['transformers']}, Triton {machine['triton']}"
    )
    assert told in text
    assert f"--seconds {EARLIER['seconds']} --record DIR" in text
    assert f"--part 1 2 3 --seconds {LATER['seconds']} --record DIR" in text
    assert list(LATER["parts"]) == ["1", "2", "3"]
    assert f"moved {gpu(LATER)['2']['copy_gb_per_second']:.0f} GB/s, read and written" in text
    c = [row["c"] for row in gpu(EARLIER)["2"]["speculation"]]
    assert f"the measured c of {min(c):.2f} to {max(c):.2f}" in text
    prompts = sum(LENGTHS.draw(REQUESTS, seed=0))
    assert f"reading {prompts:,} tokens of prompts" in text
    assert all(run.started.hardware == machine["accelerator"] for run in map(Run.load, (ROOT / "docs/runs").glob("*")))


def test_the_second_gpu_is_the_recorded_one():
    machine, parts, text = H200["machine"], gpu(H200), flat(MEASURED)
    assert f"One {machine['accelerator']}, otherwise the same: " in text
    same = "driver", "torch", "transformers", "triton"
    for record in (H200, FIRST):
        assert [record["machine"][name] for name in same] == [LATER["machine"][name] for name in same]
    assert f"`python -m lab.bench gpu --part 2 3 4 --seconds {H200['seconds']}`" in text
    assert f"`python -m lab.bench gpu --seconds {FIRST['seconds']}`" in text
    assert list(parts) == ["2", "3", "4"]
    assert f"A copy moved {parts['2']['copy_gb_per_second']:.0f} GB/s" in text
    c = [row["c"] for row in parts["2"]["speculation"]]
    assert f"a measured c of {min(c):.2f} to {max(c):.2f}" in text
    assert {row["spread"]["samples"] for row in parts["2"]["speculation"]} == {2}
    assert products_of_a_copy(H200) in text
    assert products_of_a_copy(FIRST) in text
    first, now = (
        ", ".join(f"{row['tokens_per_second']:.0f}" for row in gpu(record)["4"]["rows"].values())
        for record in (FIRST, H200)
    )
    assert f"{now} tokens/s, where the first call gave {first}" in text
    decoded = gpu(FIRST)["2"]["decode"]["decode"]
    assert f"{decoded['tokens_per_second']:.1f} tokens/s, {decoded['of_copy']:.0%} of a copy" in text


def products_of_a_copy(record: dict) -> str:
    """How fast the four products of a layer read, beside a copy."""
    copies = gpu(record)["2"]["copy_gb_per_second"]
    rows = [
        row["gb_per_second"] / copies
        for row in gpu(record)["3"]["products"]
        if (row["model"], row["rows"], row["by"]) == ("8B", 1, "lab")
    ]
    return ", ".join(f"{share:.0%}" for share in rows)
