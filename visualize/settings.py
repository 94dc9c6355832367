"""Everything a person sets on the page, and the page's link that says it again.

A link comes from anywhere, so each of its values is checked against the same
bounds as the page's own controls; what does not fit is left at its default and named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from lab.config import EngineConfig, SamplingParams

PAIRS = {"matched": "Matched draft", "mismatched": "Mismatched draft"}
BLOCK_SIZES = (4, 8, 16, 32, 64)
BOUNDS: dict[str, tuple[float, float]] = {
    "gamma": (1, 8),
    "temperature": (0, 2),
    "top_k": (0, 1000),
    "top_p": (0.05, 1),
    "seed": (0, 2**31 - 1),
    "max_tokens": (1, 1000),
}
MAX_PROMPT = 4000
"""Characters of a prompt that still make a link browsers and proxies pass on."""


@dataclass(frozen=True)
class Settings:
    """The page's controls, with the values they start with. ``seed`` None: the engine picks one."""

    prompt: str = "Once upon a time there was a poor miller who had three sons, and"
    pair: str = "matched"
    cache: bool = True
    int8: bool = False
    paged: bool = True
    speculation: bool = True
    gamma: int = 4
    block_size: int = 16
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = 7
    max_tokens: int = 160

    def engine_config(self, num_blocks: int | None = None) -> EngineConfig:
        """Raises ConfigError where a combination is senseless."""
        return EngineConfig(
            kv_cache=self.cache,
            kv_dtype="int8" if self.int8 else "auto",
            paged=self.paged,
            block_size=self.block_size,
            num_blocks=num_blocks,
            speculative="draft" if self.speculation else "off",
            num_speculative_tokens=self.gamma,
        )

    def sampling(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
        )


NAMES = tuple(field.name for field in fields(Settings))
DEFAULTS = {field.name: field.default for field in fields(Settings)}


def from_link(query: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """The settings a link asks for, and a sentence for each value that was left out."""
    settings: dict[str, Any] = {}
    notices = []
    for name in NAMES:
        if name in query:
            try:
                settings[name] = _read(name, str(query[name]))
            except ValueError as error:
                notices.append(f"The link's {name.replace('_', ' ')} was left out: {error}.")
    if not settings.get("cache", True):
        senseless = [name for name in ("int8", "paged") if settings.get(name)]
        notices += [f"The link's {name} was left out: without a cache it has nothing to act on." for name in senseless]
        settings |= {"int8": False, "paged": False}
    return Settings(**settings), notices


def _read(name: str, text: str) -> Any:
    if name == "prompt":
        if len(text) > MAX_PROMPT:
            raise ValueError(f"it has more than {MAX_PROMPT:,} characters")
        return text
    if name == "pair":
        return _one_of(text, tuple(PAIRS))
    if name == "block_size":
        return int(_one_of(text, tuple(map(str, BLOCK_SIZES))))
    if isinstance(DEFAULTS[name], bool):
        return _one_of(text, ("0", "1")) == "1"
    if name == "seed" and not text:
        return None
    low, high = BOUNDS[name]
    whole = not isinstance(DEFAULTS[name], float)
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise ValueError(f"it is a {'whole ' if whole else ''}number from {low:g} to {high:g}")
    return value


def _one_of(text: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise ValueError(f"it is one of {', '.join(allowed)}")
    return text
