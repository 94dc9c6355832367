"""The parts of the GPU's bench one after another. A part that fails leaves the figures it has, and the others go on."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from lab.bench.gpu.kernels_alone import run_attention
from lab.bench.gpu.large import run_large
from lab.bench.gpu.long_tail import run_capacity
from lab.bench.gpu.pair import run_pair
from lab.bench.gpu.sheet import Sheet, clean_up, describe
from lab.bench.output import write
from lab.models.loader import resolve_dtype


class BenchPart(NamedTuple):
    title: str
    run: Callable[..., None]


PARTS = {
    1: BenchPart("the embedded pair (output tokens/s of whole calls, greedy)", run_pair),
    2: BenchPart("an 8B-shaped model, batch 1, and a 1B-shaped draft", run_large),
    3: BenchPart("kernels alone: attention of a layer for one new token; products of few rows", run_attention),
    4: BenchPart("a long-tailed mix in a fixed piece of memory", run_capacity),
}


def run_gpu(
    parts: list[int], out: Path, report: Callable[[str], None], *, device: str, small: bool, dtype: str = "auto"
) -> dict:
    """Run the parts, writing all results so far to ``out`` after each: a part's ``result`` (``Sheet``), its
    ``seconds``, and ``failure`` if it did not come to its end."""
    place = torch.device(device, 0) if device == "cuda" else torch.device(device)
    result: dict = {"bench": "gpu", "small": small, "dtype": dtype, "machine": describe(place), "parts": {}}
    write(out, result)
    for number in parts:
        title, run = PARTS[number]
        report(f"Part {number}: {title}")
        sheet, began = Sheet(say=report), time.monotonic()
        entry = result["parts"][str(number)] = {"title": title, "result": sheet.result}
        try:  # for the pair's step in C, "auto" is more than a dtype
            run(sheet, device=place, dtype=dtype if number == 1 else resolve_dtype(dtype, device), small=small)
        except Exception as error:
            entry["failure"] = sheet.failed("It", error)
        finally:
            entry["seconds"] = time.monotonic() - began
            write(out, result)
        clean_up(place)
    return result
