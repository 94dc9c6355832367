"""What the README and the measurements say of an H100 agrees with its records."""

from __future__ import annotations

import json

import pytest

from lab import Run
from lab.bench.gpu.capacity import LENGTHS, REQUESTS
from tests.test_readme import MEASURED, README, ROOT, flat

EARLIER, LATER = (json.loads((ROOT / f"docs/bench/gpu-h100{name}.json").read_text("utf-8")) for name in ("", "-early"))
"""Two calls of the bench. The later one has no part 4, and repeats neither all of part 1 nor of speculation."""

BY_HAND = "0.64"
"""32.7 microseconds over 51.2."""


def gpu(record: dict) -> dict[str, dict]:
    """The results of its parts."""
    return {part: entry["result"] for part, entry in record["parts"].items()}


def large() -> list[str]:
    return [
        f"| {name} | {row['tokens_per_second']:.1f} | {row['gb_per_second']:.0f} | {row['of_copy']:.0%} "
        f"| {row['of_copy_in_pass']:.0%} |"
        for name, row in gpu(LATER)["2"]["decode"].items()
    ]


def speculation() -> list[str]:
    rows = {(row["gamma"], row["acceptance"]): row for row in gpu(EARLIER)["2"]["speculation"]}
    assert all(0.9 <= row["measured_over_formula"] <= 1.1 for row in rows.values())
    assert len(rows) == 24

    def cell(gamma: int, rate: float) -> str:
        return f"{rows[gamma, rate]['speedup']:.2f} ({rows[gamma, rate]['formula']:.2f})"

    return [f"| {gamma} | {' | '.join(cell(gamma, rate) for rate in (0.5, 0.7, 0.9))} |" for gamma in range(1, 9)]


def attention() -> list[str]:
    cases = {(c["context"], c["batch"], c["format"], c["blocks"]): c for c in gpu(LATER)["3"]["cases"]}
    others = ("auto", "paged"), ("int8", "paged"), ("int4", "paged"), ("auto", "sdpa")
    rows = []
    for context, batch in sorted({key[:2] for key in cases}):
        native = cases[context, batch, "auto", "contiguous"]
        assert cases[context, batch, "auto", "paged"]["microseconds"] < 1.025 * native["microseconds"]
        cells = [f"{native['gb_per_second']:.0f}"]
        for other in others:
            case = cases[context, batch, *other]
            cells.append(f"{case['gb_per_second']:.0f} ({case['microseconds'] / native['microseconds']:.2f})")
        rows.append(f"| {context:,} x {batch} | {' | '.join(cells)} |")
    return rows


def capacity() -> list[str]:
    return [
        f"| {name} | {row['most_sequences']} | {row['mean_sequences']:.0f} | {row['wasted_share']:.0%} "
        f"| {row['preemptions']} | {row['tokens_per_second']:.0f} |"
        for name, row in gpu(EARLIER)["4"]["rows"].items()
    ]


def prefill() -> list[str]:
    return [
        f"| {row['attention']}, {row['layers']} layers | {row['milliseconds']:.0f} | {row['peak_bytes'] / 1e9:.1f} |"
        for row in gpu(LATER)["2"]["prefill"].values()
    ]


def pair_on_a_gpu() -> list[str]:
    often, once = gpu(EARLIER)["1"]["static"], gpu(EARLIER)["1"]["rows"]
    assert {row["samples"] for row in often.values()} == {4}
    assert {row["samples"] for row in once.values()} == {1}
    rows = [f"| {name} | {r['median']:.0f} | {r['lower']:.0f} to {r['upper']:.0f} |" for name, r in often.items()]
    return rows + [f"| {name} | {row['median']:.0f} |" for name, row in once.items()]


def goals() -> list[str]:
    parts = gpu(LATER)
    often, spreads = gpu(EARLIER)["1"]["static"], []
    for record in EARLIER, LATER:
        over = [row["measured_over_formula"] for row in gpu(record)["2"]["speculation"]]
        spreads.append(f"{min(over):.2f} to {max(over):.2f}")
    int8 = {
        row["batch"]: f"{row['of_native']:.2f}"
        for row in parts["3"]["ratios"]
        if (row["context"], row["format"], row["blocks"]) == (32_768, "int8", "paged")
    }
    ratio = often["cache"]["median"] / often["transformers generate"]["median"]
    return [
        f"| batch 1: 85% of a copy's bandwidth | {parts['2']['decode']['decode']['of_copy']:.0%} |",
        f"| the pair: five times `generate` with its dynamic cache | {ratio:.1f} times |",
        "| INT8 at 32k in at most 0.6 of native's time "
        f"| {int8[8]} and {int8[32]} for 8 and 32 sequences, {int8[1]} for one, {BY_HAND} as it is launched now |",
        f"| speed-ups within 10% of the formula | {spreads[0]} of it; with the slower host {spreads[1]} |",
    ]


def headlines() -> list[str]:
    """The rows in the README itself."""
    parts = gpu(LATER)
    decode = parts["2"]["decode"]["decode"]
    (int8,) = (
        row["of_native"]
        for row in parts["3"]["ratios"]
        if (row["context"], row["batch"], row["format"], row["blocks"]) == (32_768, 32, "int8", "paged")
    )
    return [
        "| On an H100, a model of Llama 3.1 8B's shape, one sequence "
        f"| {decode['tokens_per_second']:.1f} tokens/s: {decode['of_copy']:.0%} of the bandwidth of a copy |",
        f"| On an H100, attention over 32 x 32,768 tokens, one layer | INT8 {int8:.2f} times the time of bfloat16 |",
    ]


@pytest.mark.parametrize(
    "table",
    [large, speculation, attention, capacity, prefill, pair_on_a_gpu, goals, headlines],
    ids=lambda table: table.__name__,
)
def test_every_row_is_the_recorded_one(table):
    page = README if table is headlines else MEASURED
    for row in table():
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
