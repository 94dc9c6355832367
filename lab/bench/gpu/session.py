"""Runs the parts one after another, each in its own process with a time limit: none can take another down."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lab.bench.gpu.attention_bench import format_attention
from lab.bench.gpu.large import format_large
from lab.bench.gpu.long_tail import format_capacity
from lab.bench.gpu.pair import format_pair
from lab.bench.gpu.sheet import format_gaps
from lab.bench.output import write

TITLES = {
    1: "the embedded pair (output tokens/s of whole calls, greedy)",
    2: "an 8B-shaped model, batch 1, and a 1B-shaped draft",
    3: "kernels alone: attention of one layer, one new token a sequence; products of few rows",
    4: "a long-tailed mix in a fixed piece of memory",
}
RECORDING = "recording"
SECONDS = {"1": 150, "2": 150, "3": 35, "4": 100, RECORDING: 20}
"""The most a part may take, starting its process included: 455 in all. What it leaves, the next ones may use."""
TO_DIE = 10
"""Seconds to wait for a killed process to end. One that is waiting for a broken driver may never end."""
FORMATS = {"1": format_pair, "2": format_large, "3": format_attention, "4": format_capacity}


def run_gpu(
    parts: list[int],
    out: Path,
    report: Callable[[str], None],
    *,
    device: str,
    small: bool,
    folder: Path | None,
    dtype: str = "auto",
    seconds: float | None = None,
) -> dict:
    """Run the parts, writing all results so far to ``out`` after each. ``folder``: for recorded runs. ``seconds``: the
    most that all of them may take together; None: ``SECONDS``.

    This process computes nothing on the device: only parts, each in a process of its own, can break or fill it.

    Returns:
        What is in ``out``: ``format_gpu`` makes a table of it.
    """
    share = 1.0 if seconds is None else seconds / sum(SECONDS.values())
    result: dict = {"bench": "gpu", "small": small, "dtype": dtype, "seconds": seconds, "machine": {}, "parts": {}}
    options = {"device": device, "dtype": dtype, "small": small}
    until = time.time()
    for part in parts:
        report(f"Part {part}: {TITLES[part]}")
        until += share * SECONDS[str(part)]
        entry = {"title": TITLES[part]} | apart(str(part), out, until, options, report)
        result["machine"] = entry.pop("machine", None) or result["machine"]
        result["parts"][str(part)] = entry
        write(out, result)
    if folder is not None:
        report(f"Runs to be replayed, in {folder}")
        until += share * SECONDS[RECORDING]
        result["recorded"] = apart(RECORDING, out, until, options | {"folder": str(folder)}, report)
        result["machine"] = result["recorded"].pop("machine", None) or result["machine"]
        write(out, result)
    return result


def is_whole(result: dict) -> bool:
    """True if every part came to its end."""
    return not any("failure" in entry for entry in (*result["parts"].values(), result.get("recorded", {})))


def apart(name: str, out: Path, until: float, options: dict, report: Callable[[str], None]) -> dict:
    """Run a part in a process, and stop it at ``until``, in seconds as ``time.time`` counts them.

    Returns:
        The part's entry (``Sheet``) as far as it got, with ``seconds``, and ``failure`` if it did not finish.
    """
    sheet = out.with_name(f"{out.name}.part-{name}")
    sheet.parent.mkdir(parents=True, exist_ok=True)
    sheet.unlink(missing_ok=True)
    began = time.time()
    try:
        ended = _run(command(name, sheet, until, options), until)
        entry: dict = {"result": {}}
        with suppress(OSError, ValueError):  # it ended before it wrote anything
            entry = json.loads(sheet.read_text("utf-8"))
    finally:
        for left in sheet.parent.glob(f"{sheet.name}*"):
            left.unlink()
    entry["seconds"] = time.time() - began
    if not entry.pop("done", False):
        entry["failure"] = ended
        report(f"  {ended}")
    return entry


def command(name: str, sheet: Path, until: float, options: dict) -> list[str]:
    return [sys.executable, "-m", "lab.bench.gpu.part", name, str(sheet), str(until), json.dumps(options)]


def _run(command: list[str], until: float) -> str:
    """Run a process until it ends or is stopped. Returns which of the two, in words."""
    began = time.time()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child inherits it: on Ctrl-C this process ends it
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        return f"its process could not be started: {error}"
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        code = process.wait(max(0, until - began))
    except subprocess.TimeoutExpired:
        return f"stopped after {time.time() - began:.3g} s"
    finally:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(TO_DIE)
    return f"its process ended with {signal.Signals(-code).name if code < 0 else code}"


def format_gpu(result: dict) -> str:
    """The table: every part's lines, and why any are missing."""
    machine = result["machine"]
    versions = (f"{name} {machine.get(name, '-')}" for name in ("driver", "torch", "transformers", "triton"))
    name = machine.get("accelerator", machine.get("processor", "a device that could not be asked"))
    lines = [", ".join((name, *versions))]
    for part, entry in result["parts"].items():
        lines += ["", f"{part}. {entry['title']} ({entry['seconds']:.0f} s)"]
        if "failure" in entry:
            lines.append(f"not all of it: {entry['failure'][:200]}")
        try:
            lines += FORMATS[part](entry["result"])
        except Exception as error:  # a partial measurement must not cost the other lines
            lines.append(f"too little was measured for a table ({type(error).__name__}: {error})")
        lines += format_gaps(entry["result"])
    if "failure" in (recorded := result.get("recorded", {})):
        lines += ["", f"not all runs were recorded: {recorded['failure'][:200]}"]
    return "\n".join(lines)
