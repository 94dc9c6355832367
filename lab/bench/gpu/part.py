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
from lab.bench.gpu.recording import record
from lab.bench.gpu.sheet import Sheet
from lab.models.loader import resolve_dtype

RUN: dict[str, Callable] = {"1": run_pair, "2": run_large, "3": run_attention, "4": run_capacity}


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
