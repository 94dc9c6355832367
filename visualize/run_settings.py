"""Everything that can be set on the Lab's page, and the link that restores it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from lab.config import EngineConfig, SamplingParams
from lab.errors import ConfigError, PromptError
from lab.models.devices import has_gpu, prefill_backends
from lab.registry import EMBEDDED, Pair, named_pair
from visualize.states import ATTENTIONS, DRAFTERS, KERNELS, KV_FORMATS
from visualize.url_settings import Link
from visualize.zerogpu_space import borrows_a_gpu

CHOICES: dict[str, dict[Any, str]] = {
    "pair": {name: pair.label for name, pair in EMBEDDED.items()},
    "kv_dtype": KV_FORMATS,
    "speculative": {name: drafter.label for name, drafter in DRAFTERS.items()},
    "block_size": {size: str(size) for size in (4, 8, 16, 32, 64)},
    "logprobs": {0: "Off", 5: "Top 5"},
    "eviction": {"lru": "Least recently used", "priority": "Lowest priority"},
    "kernels": KERNELS,
    "prefill_attention": {name: ATTENTIONS[name] for name in ("auto", *prefill_backends())},
}
"""For each setting with a fixed choice of values, the values and what the page calls them."""
LABELS = {
    "prompt": "Prompt",
    "kv_cache": "KV cache",
    "kv_dtype": "KV format",
    "paged": "Paged blocks",
    "enable_prefix_caching": "Prefix caching",
    "speculative": "Speculation: who guesses?",
    "pair": "Draft model",
    "target": "Target",
    "draft": "Draft",
    "early_exit_layer": "Early-exit layers",
    "synthetic_acceptance_rate": "Acceptance rate",
    "num_speculative_tokens": "Guesses a round",
    "adaptive_window": "Adaptive window",
    "logprobs": "Record distributions",
    "block_size": "Block size",
    "num_blocks": "Blocks in the pool",
    "eviction": "Eviction",
    "cache_priority": "Cache priority",
    "kernels": "Kernels",
    "cuda_graphs": "CUDA graphs",
    "torch_compile": "torch.compile",
    "prefill_attention": "Prompt attention",
    "temperature": "Temperature",
    "top_k": "Top-k",
    "top_p": "Top-p",
    "seed": "Seed",
    "max_tokens": "Max tokens",
}
"""What the page calls each setting."""
BOUNDS: dict[str, tuple[float, float]] = {
    "num_speculative_tokens": (1, 8),
    "early_exit_layer": (1, 15),
    "synthetic_acceptance_rate": (0, 1),
    "num_blocks": (4, 512),
    "cache_priority": (0, 9),
    "temperature": (0, 2),
    "top_k": (0, 1000),
    "top_p": (0.05, 1),
    "seed": (0, 2**31 - 1),
    "max_tokens": (1, 1000),
}
POOL_TOKENS = 2048
"""Tokens that the pool holds if its blocks are not set: two full contexts of the embedded pair."""
OTHER = "other"
"""The pair whose models are named in fields on the page, where a server accepts any models."""
LOGPROBS = 5
"""How many of the likeliest tokens are kept of each distribution, when distributions are recorded."""
MAX_MODEL = 200
"""Most characters of a folder's path or a hub id."""
MAX_PROMPT = 4000
"""Most characters of a prompt: a link with that many still gets through browsers and proxies."""


@dataclass(frozen=True)
class Settings:
    """The page's controls, with their initial values. ``seed`` None: the engine picks one. ``target`` and ``draft``:
    folders or hub ids, for the ``OTHER`` pair."""

    prompt: str = "Once upon a time there was a poor miller who had three sons, and when he grew old he said,"
    pair: str = "matched"
    target: str = ""
    draft: str = ""
    kv_cache: bool = True
    kv_dtype: str = "auto"
    paged: bool = True
    enable_prefix_caching: bool = False
    speculative: str = "draft"
    early_exit_layer: int = 4
    synthetic_acceptance_rate: float = 0.7
    num_speculative_tokens: int = 4
    adaptive_window: bool = False
    block_size: int = 16
    num_blocks: int | None = None
    eviction: str = "lru"
    cache_priority: int = 0
    kernels: str = "auto"
    cuda_graphs: bool = has_gpu()
    torch_compile: bool = False
    prefill_attention: str = "auto"
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = 7
    max_tokens: int = 160
    logprobs: int = 0

    @property
    def blocks(self) -> int | None:
        """Blocks to give the pool: the number set, or enough for ``POOL_TOKENS``."""
        return (self.num_blocks or POOL_TOKENS // self.block_size) if self.kv_cache else None

    def engine_config(self, num_blocks: int | None = None) -> EngineConfig:
        """Raises ConfigError if a combination makes no sense."""
        return EngineConfig(
            kv_cache=self.kv_cache,
            kv_dtype=self.kv_dtype,
            paged=self.paged,
            block_size=self.block_size,
            num_blocks=num_blocks,
            enable_prefix_caching=self.enable_prefix_caching,
            eviction=self.eviction,
            cache_priority=self.cache_priority,
            kernels=self.kernels,
            cuda_graphs=self.cuda_graphs or not has_gpu(),  # without one there is nothing to switch off
            torch_compile=self.torch_compile,
            prefill_attention=self.prefill_attention,
            speculative=self.speculative,
            num_speculative_tokens=self.num_speculative_tokens,
            adaptive_window=self.adaptive_window,
            early_exit_layer=self.early_exit_layer,
            synthetic_acceptance_rate=self.synthetic_acceptance_rate,
        )

    def models(self) -> str | Pair:
        """The models to load an engine for. Raises ConfigError if the page's fields name no target, or no draft
        although a draft model is to guess: the engine would say so too, but only once it is loaded."""
        if self.pair != OTHER:
            return self.pair
        pair = named_pair(self.target, self.draft)
        if self.speculative == "draft" and pair.target and not pair.draft:
            draft, off, lookup = (DRAFTERS[name].label for name in ("draft", "off", "ngram"))
            raise ConfigError(
                f"Speculation: {draft} needs a draft model. Name one with the target, or choose {off} or {lookup}."
            )
        return pair

    def sampling(self) -> SamplingParams:
        return SamplingParams(
            logprobs=self.logprobs,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
        )


def bounded(prompt: str, most: int = MAX_PROMPT) -> str:
    """``prompt``, checked here because a request need not come from the page, which has this limit too.

    Raises:
        PromptError: it has more than ``most`` characters.
    """
    if len(prompt) > most:
        raise PromptError(f"The prompt has {len(prompt):,} characters; the most is {most:,}.")
    return prompt


NAMES = tuple(field.name for field in fields(Settings))
DEFAULTS = {field.name: field.default for field in fields(Settings)}
LINK = Link(
    DEFAULTS,
    CHOICES,
    BOUNDS,
    {"prompt": MAX_PROMPT, "target": MAX_MODEL, "draft": MAX_MODEL},
    may_be_empty=("seed", "num_blocks"),
)


def from_link(
    query: Mapping[str, str], link: Link = LINK, pairs: Mapping[str, Pair] = EMBEDDED, of: str = "link"
) -> tuple[Settings, list[str]]:
    """The settings a link asks for, or what ``of`` says instead of one, and a sentence for each value that was left
    out.

    ``pairs``: the model pairs that this server offers; ``link``: one with them. Where the link does not say who
    guesses and its pair has no draft, prompt lookup does.
    """
    settings, notices = link.read(query, of)
    pair = pairs.get(settings.get("pair", DEFAULTS["pair"]))
    if pair and not pair.has_draft:
        settings.setdefault("speculative", "ngram")
    for name, reason in senseless(Settings(**settings)).items():
        if name in settings and settings[name] != NEUTRAL[name]:
            notices.append(f"The {of}'s {name} was left out: it {reason}.")
    return sensible(Settings(**settings)), notices


NEUTRAL = {
    "kv_dtype": "auto",
    "paged": False,
    "enable_prefix_caching": False,
    "cuda_graphs": False,
    "torch_compile": False,
}
"""The settings that cannot always be used, and the value of each when it is not in use."""


def sensible(settings: Settings) -> Settings:
    """The settings without those that would have nothing to act on."""
    return replace(settings, **{name: NEUTRAL[name] for name in senseless(settings)})


def senseless(settings: Settings) -> dict[str, str]:
    """The settings that would have nothing to act on, each with what it needs."""
    found = {}
    if not settings.kv_cache:
        found = dict.fromkeys(
            ("kv_dtype", "paged", "enable_prefix_caching"), "needs the KV cache: without it nothing is kept"
        )
    elif not settings.paged:
        found["enable_prefix_caching"] = "needs paged blocks: only those can be shared"
    if not has_gpu():
        found["cuda_graphs"] = "needs a GPU that PyTorch can use, and this machine has none"
        if settings.kernels == "auto":
            found["torch_compile"] = "needs kernels by Torch: a step in C is compiled already"
    elif not settings.kv_cache or settings.kernels != "auto":
        found["cuda_graphs"] = "needs the KV cache and the lab's own kernels, whose steps it captures"
    if borrows_a_gpu(os.environ):
        found["torch_compile"] = "needs a GPU for longer than a run, for which this Space lends one"
    return found
