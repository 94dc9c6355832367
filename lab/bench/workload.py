"""What the serving bench asks for: prompts and outputs whose lengths have a long tail."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from lab.bench.ladder import PROMPTS
from lab.config import EngineConfig, SamplingParams
from lab.decode.engine import Engine


@dataclass(frozen=True)
class Job:
    """A request before it is submitted."""

    prompt: str
    sampling: SamplingParams


@dataclass(frozen=True)
class Lengths:
    """Log-normal numbers of tokens, rounded and clipped: most are short, a few several times as long."""

    median: int = 48
    sigma: float = 0.8
    shortest: int = 8
    longest: int = 256

    def draw(self, count: int, seed: int) -> list[int]:
        draw = random.Random(seed).lognormvariate
        lengths = [round(draw(math.log(self.median), self.sigma)) for _ in range(count)]
        return [min(max(length, self.shortest), self.longest) for length in lengths]


def write(engine: Engine, lengths: list[int]) -> list[str]:
    """Texts that the target writes itself at temperature 1: an opening, and ``lengths[i]`` tokens after it."""
    requests = []
    for i, length in enumerate(lengths):
        opening = PROMPTS[i % len(PROMPTS)]
        sampling = SamplingParams(max_tokens=length, temperature=1.0, seed=i, ignore_eos=True)
        requests.append((opening, engine.submit(opening, EngineConfig(paged=True), sampling)))
    return [opening + request.result().text for opening, request in requests]


def exactly(prompts: list[str], lengths: list[int], temperature: float = 0.0) -> list[Job]:
    """Jobs whose outputs have the given lengths. Seeds are the jobs' numbers."""
    return [
        Job(prompt, SamplingParams(max_tokens=length, temperature=temperature, seed=i, ignore_eos=True))
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
