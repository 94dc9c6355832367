"""Runs of the embedded pair on this device, kept to be replayed where there is none like it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lab.bench.gpu.large import refuse_failures
from lab.bench.ladder import PROMPTS
from lab.config import EngineConfig, SamplingParams
from lab.load import load_engine

CONFIGS = {
    "no-cache": EngineConfig(kv_cache=False),
    "cache": EngineConfig(num_blocks=64),
    "paged-int8": EngineConfig(paged=True, kv_dtype="int8", num_blocks=64),
    "draft": EngineConfig(paged=True, speculative="draft", num_blocks=64),
    "lookup": EngineConfig(paged=True, speculative="ngram", num_blocks=64),
}


def record(folder: Path, report: Callable[[str], None], *, device: str, small: bool) -> list[str]:
    """Save a run of each setting for a few prompts. The second run is kept: nothing is compiled or captured in it.

    Returns:
        The files' names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    engine = load_engine(device=device)
    sampling = SamplingParams(max_tokens=8 if small else 48, temperature=0.8, seed=0)
    names = []
    for setting, config in CONFIGS.items():
        for number, prompt in enumerate(PROMPTS[:2], 1):
            engine.generate(prompt, config, sampling)
            run = engine.generate(prompt, config, sampling)
            refuse_failures([run])
            names.append(f"{setting}-{number}.json")
            run.save(folder / names[-1])
    report(f"  {len(names)} runs in {folder}")
    return names
