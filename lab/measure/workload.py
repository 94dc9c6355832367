"""Requests of many users: prompts, and outputs whose lengths have a long tail."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from typing import Literal

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.measure.prompts import PROMPTS, held_out_prompts

Mix = Literal["equal", "tailed", "paragraph"]
"""How long outputs get. "equal": all the same. "tailed": ``LogNormalLengths``, known in advance. "paragraph": to the
end of a paragraph, a length not known in advance."""


@dataclass(frozen=True)
class PlannedRequest:
    """A request before it is submitted.

    Attributes:
        continuations: how many of its prompt, each with its own seed (vLLM: ``n``).
        cache_priority: as in ``EngineConfig``.
    """

    prompt: str
    sampling: SamplingParams
    continuations: int = 1
    cache_priority: int = 0


@dataclass(frozen=True)
class LogNormalLengths:
    """Log-normal lengths in tokens, rounded and clipped: most are short, a few several times as long."""

    median: int = 48
    sigma: float = 0.8
    shortest: int = 8
    longest: int = 256

    def draw(self, count: int, seed: int) -> list[int]:
        draw = random.Random(seed).lognormvariate
        lengths = [round(draw(math.log(self.median), self.sigma)) for _ in range(count)]
        return [min(max(length, self.shortest), self.longest) for length in lengths]


def write(engine: Engine, lengths: list[int]) -> list[str]:
    """Texts that the target itself writes at temperature 1: an opening, and ``lengths[i]`` tokens after it."""
    requests = []
    for i, length in enumerate(lengths):
        opening = PROMPTS[i % len(PROMPTS)]
        sampling = SamplingParams(max_tokens=length, temperature=1.0, seed=i, ignore_eos=True)
        requests.append((opening, engine.submit(opening, EngineConfig(paged=True), sampling)))
    return [opening + request.result().text for opening, request in requests]


def exactly(prompts: list[str], lengths: list[int], temperature: float = 0.0) -> list[PlannedRequest]:
    """Requests whose outputs have the given lengths. Seeds are their numbers."""
    return [
        PlannedRequest(prompt, SamplingParams(max_tokens=length, temperature=temperature, seed=i, ignore_eos=True))
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]


def user_requests(
    count: int,
    mix: Mix,
    tokens: int,
    *,
    temperature: float,
    seed: int,
    beginning: str = "",
    of_every: int = 1,
    continuations: int = 1,
) -> list[PlannedRequest]:
    """Requests of many users: texts the embedded pair was not trained on, to be continued.

    Args:
        count: sequences of all requests together.
        tokens: of an output: exactly so many ("equal"), their median ("tailed"), at most ("paragraph").
        seed: of the first sequence; the others' count up from it.
        beginning: of every ``of_every``-th prompt from the first on, before its own text. What is cached of such a
            prompt has a higher priority.
        continuations: of every request; the last one gets what is left.
    """
    texts = (*held_out_prompts(), *PROMPTS)
    firsts = range(0, count, continuations)
    own = [_turned(texts[i % len(texts)], i // len(texts)) for i in range(len(firsts))]
    begun = [bool(beginning) and not i % of_every for i in range(len(firsts))]
    drawn = [tokens] * len(firsts)
    if mix == "tailed":
        drawn = LogNormalLengths(median=tokens, longest=4 * tokens).draw(len(firsts), seed)
    known = mix != "paragraph"
    stop = () if known else ("\n",)
    return [
        PlannedRequest(
            f"{beginning}\n{text}" if begins else text,
            SamplingParams(max_tokens=most, temperature=temperature, seed=seed + first, stop=stop, ignore_eos=known),
            min(continuations, count - first),
            cache_priority=int(begins),
        )
        for first, text, begins, most in zip(firsts, own, begun, drawn, strict=True)
    ]


def _turned(text: str, words: int) -> str:
    """The text with its first ``words`` words at its end: used again, it is another prompt, with another beginning."""
    turned = deque(text.split())
    turned.rotate(-words)
    return " ".join(turned)
