"""Runs of the embedded pair on this device, saved to be replayed on machines without one."""

from __future__ import annotations

from pathlib import Path

import torch

from lab.bench.gpu.sheet import Sheet
from lab.config import EngineConfig, SamplingParams
from lab.load import load_engine
from lab.measure.measuring import refuse_failure
from lab.measure.prompts import PROMPTS

CONFIGS = {
    "no-cache": EngineConfig(kv_cache=False),
    "cache": EngineConfig(num_blocks=64),
    "paged-int8": EngineConfig(paged=True, kv_dtype="int8", num_blocks=64),
    "draft": EngineConfig(paged=True, speculative="draft", num_blocks=64),
    "lookup": EngineConfig(paged=True, speculative="ngram", num_blocks=64),
}


def record(sheet: Sheet, folder: Path, *, device: torch.device, dtype: str, small: bool) -> None:
    """Save a run of each setting for each of two prompts; ``files`` are their names. The second run is saved: nothing
    is compiled or captured in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    engine = load_engine(device=str(device), dtype=dtype)
    sampling = SamplingParams(max_tokens=8 if small else 48, temperature=0.8, seed=0)
    names = sheet.result["files"] = []
    for setting, config in CONFIGS.items():
        for number, prompt in enumerate(PROMPTS[:2], 1):
            with sheet.attempt(f"{setting}-{number}"):
                engine.generate(prompt, config, sampling)
                run = engine.generate(prompt, config, sampling)
                refuse_failure(run, engine)
                run.save(folder / f"{setting}-{number}.json")
                names.append(f"{setting}-{number}.json")
    sheet.say(f"  {len(names)} runs in {folder}")
