"""A scripted engine's runs, to compare."""

from __future__ import annotations

from dataclasses import replace

from lab.config import EngineConfig, SamplingParams
from lab.trace.run import Run
from tests.visualize.scripted import WORDS, ScriptedEngine
from visualize.pages.compare.configurations import LANES

BYTES = {"auto": 1000, "int8": 500, "int4": 250}
HOSTILE = "<img src=x onerror=window.pwned=1>\u202e"


def made(*names: str, repeats: int = 2, temperature: float = 0.0, words: list[str] = WORDS) -> dict[str, list[Run]]:
    sampling = SamplingParams(max_tokens=40, seed=3, temperature=temperature)
    runs = {LANES[name][0]: LANES[name][1] for name in names}
    engine = ScriptedEngine(words=words)
    return {
        label: [Run(engine.stream("Once upon a time", config, replace(sampling, seed=i))) for i in range(repeats)]
        for label, config in runs.items()
    }


def configs(runs: dict[str, list[Run]]) -> dict[str, EngineConfig]:
    return {name: some[0].config for name, some in runs.items()}
