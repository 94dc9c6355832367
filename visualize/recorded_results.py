"""Recorded measurements and runs: where they are, and the command that repeats each."""

import functools
import json
from pathlib import Path
from typing import Any

from lab.settings import KV_DTYPES
from lab.trace.run import Run, RunFileError
from visualize.reduce.settings_text import in_short
from visualize.text import visible

DOCS = Path(__file__).parents[1] / "docs"
KV_ERROR = DOCS / "bench" / "kv-error-cpu.json"
"""Written by ``python -m lab.bench kv``, for the embedded target."""

LOGPROBS = KV_ERROR.with_name("logprobs-cpu.json")
"""Written by ``python -m lab.bench logprobs``, for the embedded pair."""

RUNS = DOCS / "runs"
"""Of the embedded pair on a GPU, written by ``python -m lab run PROMPT --json``."""

OPENING = DOCS / "opening.json"
OPENING_POOL = DOCS / "opening-pool.json.gz"
OPENING_COMPARISON = DOCS / "opening-comparison.json"
"""What Lab, Pool and Compare open with, written by ``python -m docs.record_opening``, for the embedded pair."""


def run_files() -> list[Path]:
    """The recorded runs that the repository keeps, if it has any."""
    return sorted(RUNS.glob("*.json"))


@functools.cache
def logprobs_cost() -> str:
    """The cost that recording distributions adds to a step, where it was measured; empty where there is no record."""
    if not LOGPROBS.exists():
        return ""
    record = json.loads(LOGPROBS.read_text("utf-8"))
    return f"{record['added_ms']['median'] / record['plain_ms']:+.0%}"


@functools.cache
def kv_error(kv_dtype: str) -> str:
    """The error of a KV format, in a sentence; empty for the model's own, and where there is no record."""
    if kv_dtype == "auto" or not KV_ERROR.exists():
        return ""
    row = next(row for row in _kv_record()["formats"] if row["kv_dtype"] == kv_dtype)
    fewer = 1 - 1 / row["perplexity_ratio"]["value"]  # perplexity is 1 / the mean probability of a text's tokens
    speed = row["speed"]["default"]["ratio"]
    slower = f", {1 / speed['value']:.0f} times slower" if speed["high"] < 0.5 else ""
    return f"Right tokens {fewer:.2%} less likely{slower} (on a CPU)."


def kv_quality() -> list[list[str]]:
    """All KV formats on one ruler, a row each: name, bytes per token, and, each with its interval, the change of
    perplexity, KL and decode speed. Empty where there is no record."""
    if not KV_ERROR.exists():
        return []
    exempt = (_kv_record().get("exempt") or {"formats": []})["formats"]
    named = [(KV_DTYPES[row["kv_dtype"]], row) for row in _kv_record()["formats"]]
    named += [(f"{KV_DTYPES[row['kv_dtype']]}, first and last layer exempt", row) for row in exempt]
    return [
        [
            name,
            f"{row['bytes_per_token']:,}",
            _within({end: 100 * (value - 1) for end, value in row["perplexity_ratio"].items()}, "{:+.2f}%"),
            _within(row["kl"], "{:.2g}"),
            _within(row["speed"]["default"]["ratio"], "{:.2f}×"),
            _within(row["speed"]["reference"]["ratio"], "{:.2f}×"),
        ]
        for name, row in named
    ]


def _within(interval: dict[str, float], form: str) -> str:
    value, low, high = (form.format(interval[end]) for end in ("value", "low", "high"))
    return value if low == high else f"{value} ({low.strip('+%×')} to {high.strip('+%×')})"


@functools.cache
def _kv_record() -> dict[str, Any]:
    return json.loads(KV_ERROR.read_text("utf-8"))


@functools.cache
def runs() -> dict[str, Path]:
    """Those of ``run_files`` that can be read, by what they are in a few words: where they were recorded, with which
    settings, and after which of their prompts."""
    found: dict[str, Path] = {}
    prompts: dict[str, int] = {}
    for file in run_files():
        try:
            started = Run.load(file).started
        except RunFileError:
            continue
        number = prompts.setdefault(started.prompt, len(prompts) + 1)
        name = visible(f"{_model(started.accelerator)}: {in_short(started.config)}, prompt {number}")
        found[f"{name} ({visible(file.stem)})" if name in found else name] = file
    return found


def _model(hardware: str) -> str:
    """The word that tells a device from others of its maker: "H100" of "NVIDIA H100 80GB HBM3"."""
    return next((word for word in hardware.split() if any(map(str.isdigit, word))), hardware)
