"""The parts of the GPU's bench one after another, each in its own process with a time limit: none can take another
down. Such a process is ``python -m lab.bench.gpu.session NAME FILE UNTIL OPTIONS``, with the options of ``run_part`` as
JSON; its results are in the file (``Sheet``).
"""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from transformers.utils import logging as transformers_logging

from lab.bench.gpu.kernels_alone import run_attention
from lab.bench.gpu.large import run_large
from lab.bench.gpu.long_tail import run_capacity
from lab.bench.gpu.pair import run_pair
from lab.bench.gpu.sheet import Sheet, describe
from lab.bench.output import write
from lab.config import EngineConfig, SamplingParams
from lab.load import load_engine
from lab.measure.measuring import decode
from lab.measure.workload import PROMPTS
from lab.models.loader import resolve_dtype


class BenchPart(NamedTuple):
    """``seconds``: the most it may take, starting its process included. What it leaves, the next ones may use."""

    title: str
    seconds: int
    run: Callable[..., None]


PARTS = {
    1: BenchPart("the embedded pair (output tokens/s of whole calls, greedy)", 150, run_pair),
    2: BenchPart("an 8B-shaped model, batch 1, and a 1B-shaped draft", 150, run_large),
    3: BenchPart("kernels alone: attention of a layer for one new token; products of few rows", 35, run_attention),
    4: BenchPart("a long-tailed mix in a fixed piece of memory", 100, run_capacity),
}
RECORDING, RECORDING_SECONDS = "recording", 20
SECONDS = sum(part.seconds for part in PARTS.values()) + RECORDING_SECONDS
TO_DIE = 10
"""Seconds to wait for a killed process to end. One that is waiting for a broken driver may never end."""
RECORDED = {
    "no-cache": EngineConfig(kv_cache=False),
    "cache": EngineConfig(num_blocks=64),
    "paged-int8": EngineConfig(paged=True, kv_dtype="int8", num_blocks=64),
    "draft": EngineConfig(paged=True, speculative="draft", num_blocks=64),
    "lookup": EngineConfig(paged=True, speculative="ngram", num_blocks=64),
}
"""Runs of the embedded pair on this device, saved to be replayed on machines without one."""


# -- the parent ------------------------------------------------------------------------------


def run_gpu(
    parts: list[int],
    out: Path,
    report: Callable[[str], None],
    *,
    device: str,
    small: bool,
    folder: Path | None,
    dtype: str = "auto",
    seconds: float = SECONDS,
) -> dict:
    """Run the parts, writing all results so far to ``out`` after each. ``folder``: for recorded runs. ``seconds``: the
    most that all of them may take together. This process computes nothing on the device: only parts, each in a process
    of its own, can break or fill it."""
    share, until = seconds / SECONDS, time.time()
    result: dict = {"bench": "gpu", "small": small, "dtype": dtype, "seconds": seconds, "machine": {}, "parts": {}}
    options = {"device": device, "dtype": dtype, "small": small}
    for number in parts:
        part = PARTS[number]
        report(f"Part {number}: {part.title}")
        until += share * part.seconds
        entry = {"title": part.title} | apart(str(number), out, until, options, report)
        result["machine"] = entry.pop("machine", None) or result["machine"]
        result["parts"][str(number)] = entry
        write(out, result)
    if folder is not None:
        report(f"Runs to be replayed, in {folder}")
        until += share * RECORDING_SECONDS
        result["recorded"] = apart(RECORDING, out, until, options | {"folder": str(folder)}, report)
        result["machine"] = result["recorded"].pop("machine", None) or result["machine"]
        write(out, result)
    return result


def is_whole(result: dict) -> bool:
    """True if every part came to its end."""
    return not any("failure" in entry for entry in (*result["parts"].values(), result.get("recorded", {})))


def apart(name: str, out: Path, until: float, options: dict, report: Callable[[str], None]) -> dict:
    """Run a part in a process, and stop it at ``until``, in seconds as ``time.time`` counts them. Returns the part's
    entry (``Sheet``) as far as it got, with ``seconds``, and ``failure`` if it did not finish."""
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
    return [sys.executable, "-m", "lab.bench.gpu.session", name, str(sheet), str(until), json.dumps(options)]


def _run(command: list[str], until: float) -> str:
    """Run a process until it ends or is stopped. Returns which of the two, in words."""
    began = time.time()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child inherits it: on Ctrl-C this process ends it
    try:
        process = subprocess.Popen(command)
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


# -- a part's process ------------------------------------------------------------------------


def run_part(name: str, sheet: Sheet, *, device: str, dtype: str, small: bool, folder: str | None = None) -> None:
    """Fill the sheet. ``name``: a part's number, or "recording"; ``folder``: where a recording puts its files.

    Failures are recorded in the sheet.
    """
    try:
        place = torch.device(device, 0) if device == "cuda" else torch.device(device)
        sheet.entry["machine"] = describe(place)
        sheet.keep()
        if name == RECORDING:
            record(sheet, Path(folder), device=place, dtype=dtype, small=small)
        else:  # for the pair's step in C, "auto" is more than a dtype
            number = int(name)
            precise = dtype if number == 1 else resolve_dtype(dtype, device)
            PARTS[number].run(sheet, device=place, dtype=precise, small=small)
    except Exception as error:
        sheet.fail(error)
    sheet.entry["done"] = True
    sheet.keep()


def record(sheet: Sheet, folder: Path, *, device: torch.device, dtype: str, small: bool) -> None:
    """Save a run of each setting for each of two prompts; ``files`` are their names. The second run is saved: nothing
    is compiled or captured in it."""
    folder.mkdir(parents=True, exist_ok=True)
    engine = load_engine(device=str(device), dtype=dtype)
    sampling = SamplingParams(max_tokens=8 if small else 48, temperature=0.8, seed=0)
    names = sheet.result["files"] = []
    for setting, config in RECORDED.items():
        for number, prompt in enumerate(PROMPTS[:2], 1):
            name = f"{setting}-{number}.json"
            with sheet.attempt(name):
                engine.generate(prompt, config, sampling)
                decode(engine, prompt, config, sampling).save(folder / name)
                names.append(name)
    sheet.say(f"  {len(names)} runs in {folder}")


def main(name: str, path: str, until: str, options: str) -> None:
    transformers_logging.set_verbosity_error()
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    gc.freeze()  # imported modules stay: ``clean_up`` need not scan them every time
    run_part(name, Sheet(Path(path), float(until)), **json.loads(options))
    # Everything is written. An orderly shutdown can fail or hang on a broken device.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
