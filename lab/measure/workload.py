"""Requests of many users: prompts, and outputs whose lengths have a long tail."""

import json
import math
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.models.loader import WEIGHTS

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


PROMPTS = (
    "Once upon a time there was a miller who had three sons.",
    "The old king looked out of the window and said",
    "In the middle of the forest stood a little house, and in it",
    '"Where are you going?" asked the fox.',
    "The princess took the golden ball and",
    "Long ago, by the side of the sea, a fisherman",
)
"""Openings of tales, which most benches go on from."""
CODE = (
    "def read(self, size=-1):\n    if self.closed:\n        raise ValueError(",
    "import os\nimport sys\n\nclass Parser:\n    def __init__(self, name):\n        self.",
    "for i in range(len(values)):\n    if values[i] > limit:\n        ",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        ",
    "with open(path) as file:\n    for line in file:\n        name, value = line.split(",
    "def mean(values):\n    total = 0\n    for value in values:\n        ",
)
"""Beginnings of programs: nothing that the embedded pair has read much of."""


def held_out_prompts() -> list[str]:
    """The model card's prompts: beginnings of paragraphs that the embedded pair was not trained on."""
    return json.loads((WEIGHTS / "card.json").read_text("utf-8"))["acceptance"]["prompts"]


def longest(engine: Engine, prompts: Iterable[str]) -> int:
    """Tokens of the longest prompt."""
    return max(len(engine.tokenizer(prompt)["input_ids"]) for prompt in prompts)


def refuse_cut(engine: Engine, prompts: Iterable[str], max_tokens: int) -> None:
    """Raises LabError if the model's context would end an output before it has ``max_tokens`` tokens."""
    read, holds = longest(engine, prompts), f"{engine.target.name} holds {engine.context_length:,}"
    room = engine.context_length - read
    if room < 2:  # one token to wait for, one to time
        raise LabError(f"the longest prompt has {read:,} tokens, and {holds}, prompt and output together. Shorten it.")
    if max_tokens > room:
        raise LabError(
            f"--max-tokens {max_tokens} is too many: {holds}, and the longest prompt has {read:,} of them. Ask for at "
            f"most {room:,}."
        )


def read_text(path: Path) -> str:
    """The text of a UTF-8 file. Raises LabError: it cannot be read, is not UTF-8, or holds nothing."""
    try:
        text = path.read_text("utf-8-sig")  # some editors begin a file with a byte order mark
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise LabError(f"{path} is not UTF-8 text. Convert it first.") from error
    if not text.strip():
        raise LabError(f"{path} holds no text.")
    return text
