"""One part of the bench, in a process of its own: a device error in one part does not affect the next.

``session`` starts it: ``python -m lab.bench.gpu.part NAME FILE UNTIL OPTIONS``, with the options of ``run_part`` as
JSON. Its results are in the file (``Sheet``).
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from lab.bench.gpu.attention_bench import run_attention
from lab.bench.gpu.device import describe
from lab.bench.gpu.large import run_large
from lab.bench.gpu.long_tail import run_capacity
from lab.bench.gpu.pair import run_pair
from lab.bench.gpu.sheet import Sheet
from lab.config import EngineConfig, SamplingParams
from lab.load import load_engine
from lab.measure.measuring import refuse_failure
from lab.measure.prompts import PROMPTS
from lab.models.loader import resolve_dtype

RUN: dict[str, Callable] = {"1": run_pair, "2": run_large, "3": run_attention, "4": run_capacity}
RECORDED = {
    "no-cache": EngineConfig(kv_cache=False),
    "cache": EngineConfig(num_blocks=64),
    "paged-int8": EngineConfig(paged=True, kv_dtype="int8", num_blocks=64),
    "draft": EngineConfig(paged=True, speculative="draft", num_blocks=64),
    "lookup": EngineConfig(paged=True, speculative="ngram", num_blocks=64),
}
"""Runs of the embedded pair on this device, saved to be replayed on machines without one."""


def record(sheet: Sheet, folder: Path, *, device: torch.device, dtype: str, small: bool) -> None:
    """Save a run of each setting for each of two prompts; ``files`` are their names. The second run is saved: nothing
    is compiled or captured in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    engine = load_engine(device=str(device), dtype=dtype)
    sampling = SamplingParams(max_tokens=8 if small else 48, temperature=0.8, seed=0)
    names = sheet.result["files"] = []
    for setting, config in RECORDED.items():
        for number, prompt in enumerate(PROMPTS[:2], 1):
            with sheet.attempt(f"{setting}-{number}"):
                engine.generate(prompt, config, sampling)
                run = engine.generate(prompt, config, sampling)
                refuse_failure(run, engine)
                run.save(folder / f"{setting}-{number}.json")
                names.append(f"{setting}-{number}.json")
    sheet.say(f"  {len(names)} runs in {folder}")


def run_part(name: str, sheet: Sheet, *, device: str, dtype: str, small: bool, folder: str | None = None) -> None:
    """Fill the sheet. ``name``: a part's number, or "recording"; ``folder``: where a recording puts its files.

    Failures are recorded in the sheet.
    """
    try:
        place = torch.device(device, 0) if device == "cuda" else torch.device(device)
        sheet.entry["machine"] = describe(place)
        sheet.keep()
        if name == "recording":
            record(sheet, Path(folder), device=place, dtype=dtype, small=small)
        elif name == "1":  # for a step in C, "auto" is more than a dtype
            run_pair(sheet, device=place, dtype=dtype, small=small)
        else:
            RUN[name](sheet, device=place, dtype=resolve_dtype(dtype, device), small=small)
    except Exception as error:
        sheet.fail(error)
    sheet.entry["done"] = True
    sheet.keep()


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
