"""Texts to measure on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from lab.engine.engine import Engine
from lab.errors import LabError
from lab.models.loader import WEIGHTS

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
    """The text of a UTF-8 file.

    Raises:
        LabError: it cannot be read, is not UTF-8, or holds nothing.
    """
    try:
        text = path.read_text("utf-8-sig")  # some editors begin a file with a byte order mark
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise LabError(f"{path} is not UTF-8 text. Convert it first.") from error
    if not text.strip():
        raise LabError(f"{path} holds no text.")
    return text
