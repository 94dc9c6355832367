"""The parts one after another: each with a limit of time, none able to take another down."""

from __future__ import annotations

import json
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from lab.bench.gpu.attention import format_attention, run_attention
from lab.bench.gpu.capacity import format_capacity, run_capacity
from lab.bench.gpu.device import clean_up, describe
from lab.bench.gpu.large import format_large, run_large
from lab.bench.gpu.pair import format_pair, run_pair
from lab.bench.gpu.recording import record

TITLES = {
    1: "the embedded pair (output tokens/s of whole calls, greedy)",
    2: "an 8B-shaped model, batch 1, and a 1B-shaped draft",
    3: "the attention kernel, one layer, one new token a sequence",
    4: "a long-tailed mix in a fixed piece of memory",
}
SECONDS = {1: 125, 2: 140, 3: 75, 4: 95}
RECORDING_SECONDS = 20
"""Most a part may take: 455 in all."""
FORMATS = {1: format_pair, 2: format_large, 3: format_attention, 4: format_capacity}


class OutOfTimeError(BaseException):
    """A part has used its time up. Not an Exception: the engine would take it for a step that failed."""


def run_gpu(
    parts: list[int], out: Path, report: Callable[[str], None], *, device: str, small: bool, folder: Path | None
) -> str:
    """Run the parts, writing all that is known to ``out`` after each. ``folder``: for recorded runs.

    Returns:
        The table.
    """
    place = torch.device(device, 0) if device == "cuda" else torch.device(device)
    run = {
        1: partial(run_pair, device=device),
        2: partial(run_large, device=place),
        3: partial(run_attention, device=place),
        4: partial(run_capacity, device=place),
    }
    result: dict[str, object] = {"bench": "gpu", "small": small, "machine": describe(place), "parts": {}}
    for part in parts:
        report(f"Part {part}: {TITLES[part]}")
        found: dict[str, object] = {}
        result["parts"][str(part)] = entry = {"title": TITLES[part], "result": found}
        with guarded(entry, SECONDS[part], report):
            run[part](found, report, small=small)
        clean_up(place)
        _write(out, result)
    if folder is not None:
        result["recorded"] = entry = {}
        with guarded(entry, RECORDING_SECONDS, report):
            entry["files"] = record(folder, report, device=device, small=small)
        _write(out, result)
    return format_gpu(result)


@contextmanager
def guarded(entry: dict, seconds: float, report: Callable[[str], None]) -> Iterator[None]:
    """Let what fails or takes too long be told in ``entry``, and the rest go on."""

    def over(*_: object) -> None:
        raise OutOfTimeError(f"stopped after {seconds:g} s")

    began = time.perf_counter()
    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except (Exception, OutOfTimeError) as error:
        entry["failure"] = f"{type(error).__name__}: {error}"
        entry["traceback"] = traceback.format_exc()
        report(f"  failed: {entry['failure'][:300]}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        entry["seconds"] = time.perf_counter() - began


def _write(out: Path, result: dict) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def format_gpu(result: dict) -> str:
    """The table: every part's lines, and why one has fewer than it should."""
    machine = result["machine"]
    lines = [
        f"{machine.get('accelerator', machine['processor'])}, driver {machine.get('driver', '-')}, torch "
        f"{machine['torch']}, transformers {machine['transformers']}, triton {machine['triton']}"
    ]
    for part, entry in result["parts"].items():
        lines += ["", f"{part}. {entry['title']} ({entry['seconds']:.0f} s)"]
        if "failure" in entry:
            lines.append(f"not all of it: {entry['failure'][:200]}")
        try:
            lines += FORMATS[int(part)](entry["result"])
        except (KeyError, IndexError, ValueError):
            lines.append("too little was measured for a table")
    return "\n".join(lines)
