"""A user's choices: the engine's toggles and the sampling of one request.

Every error that a wrong choice can cause is raised here, or is of a type in ``lab.errors``, with a sentence that says
what would be right.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args, get_type_hints

from lab.errors import ConfigError

KVFormat = Literal["auto", "int8", "int4"]
MOST_PROPOSED = 32
"""Most tokens proposed in a round."""
HIGHEST_PRIORITY = 9
"""The highest priority of cached blocks; the lowest is 0."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The engine's settings for one request; ``lab.settings`` has a line on each.

    Requests that agree on the first eleven share one pool of cache blocks and are computed in one batch.

    Attributes:
        kv_dtype: "int8": one byte per number and a float32 scale per token and KV head. "int4": half a byte per
            number and a bfloat16 scale per group of numbers.
        num_blocks: None: as free memory allows.
        eviction: "priority" evicts the prefix with the lowest ``cache_priority``, then the least recently used.
        prefill_attention: attention where several known tokens of a sequence are read at once. "auto": that of
            ``kernels``. The others are back ends of torch's scaled_dot_product_attention.
        kernels: "auto": Triton on a GPU, C on a CPU. "reference": torch, operation by operation.
        speculative: "synthetic" proposes the target's own next token, right with ``synthetic_acceptance_rate``, at no
            cost: it shows how speed follows acceptance.
        num_speculative_tokens: gamma; with ``adaptive_window`` the most.
        early_exit_layer: None: a quarter of the layers.

    Raises:
        ConfigError: a value out of range, or a setting of the cache without a cache.
    """

    kv_cache: bool = True
    kv_dtype: KVFormat = "auto"
    paged: bool = False
    block_size: int = 16
    num_blocks: int | None = None
    enable_prefix_caching: bool = False
    eviction: Literal["lru", "priority"] = "lru"
    prefill_attention: Literal["auto", "math", "efficient", "flash"] = "auto"
    kernels: Literal["auto", "reference"] = "auto"
    cuda_graphs: bool = True
    torch_compile: bool = False
    cache_priority: int = 0
    speculative: Literal["off", "draft", "ngram", "early_exit", "synthetic"] = "off"
    num_speculative_tokens: int = 4
    adaptive_window: bool = False
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    early_exit_layer: int | None = None
    synthetic_acceptance_rate: float = 0.7

    def __post_init__(self) -> None:
        switches = ("kv_cache", "paged", "enable_prefix_caching", "cuda_graphs", "torch_compile", "adaptive_window")
        for name in switches:
            _require(
                isinstance(getattr(self, name), bool), f"{name} must be True or False, not {getattr(self, name)!r}."
            )
        for name in ("kv_dtype", "eviction", "prefill_attention", "kernels", "speculative"):
            _choice(name, getattr(self, name), _choices(name))
        require_whole("block_size", self.block_size, 1, 1024)
        require_whole("cache_priority", self.cache_priority, 0, HIGHEST_PRIORITY)
        if self.num_blocks is not None:
            require_whole("num_blocks", self.num_blocks, 1, 10_000_000)
        require_whole("num_speculative_tokens", self.num_speculative_tokens, 1, MOST_PROPOSED)
        require_whole("prompt_lookup_max", self.prompt_lookup_max, 1, 32)
        require_whole("prompt_lookup_min", self.prompt_lookup_min, 1, self.prompt_lookup_max)
        if self.early_exit_layer is not None:
            require_whole("early_exit_layer", self.early_exit_layer, 1, 10_000)
        _real("synthetic_acceptance_rate", self.synthetic_acceptance_rate, 0.0, 1.0)
        if not self.kv_cache:
            _require(
                self.kv_dtype == "auto",
                f"kv_dtype={self.kv_dtype!r} sets how cached keys and values are stored, and kv_cache is off: nothing "
                "is stored. Turn the cache on, or leave kv_dtype at 'auto'.",
            )
            _require(
                not self.paged,
                "paged=True decides where cached keys and values go, and kv_cache is off: there are no blocks "
                "to hand out. Turn the cache on, or paged off.",
            )
        _require(
            self.paged or not self.enable_prefix_caching,
            "enable_prefix_caching=True lets sequences share blocks, and a contiguous sequence has a run of blocks "
            "of its own. Set paged=True, or enable_prefix_caching=False.",
        )


LEAST_POSITIVE = 1e-4
"""The least temperature above 0, and the least top_p: with less, divided logits and sums are not finite in float32."""
SEEDS = 2**32
"""How many seeds there are: a CPU's generator (mt19937) takes 32 bits, and ignores the rest of a larger number."""
MOST_STOPS = 16
LONGEST_STOP = 200
"""Most characters of a stop string."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Choice of the next token, and when to stop; ``lab.settings`` has a line on each setting.

    Attributes:
        seed: None: the engine picks one and records it.
        logprobs: so many of the likeliest tokens under target, draft and adjusted distribution are recorded for each
            verified draft token (the ``Distributions`` event), as probabilities. The name is vLLM's and OpenAI's.

    Raises:
        ConfigError: a value out of range.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int = 0

    def __post_init__(self) -> None:
        require_whole("max_tokens", self.max_tokens, 1, 1_000_000)
        require_whole("logprobs", self.logprobs, 0, 20)
        _real("temperature", self.temperature, 0.0, 100.0)
        _require(
            self.temperature == 0 or self.temperature >= LEAST_POSITIVE,
            f"temperature must be 0 (greedy) or at least {LEAST_POSITIVE}.",
        )
        require_whole("top_k", self.top_k, 0, 10_000_000)
        _real("top_p", self.top_p, 0.0, 1.0)
        _require(self.top_p >= LEAST_POSITIVE, f"top_p must be at least {LEAST_POSITIVE} (1 keeps every token).")
        if self.seed is not None:
            require_whole("seed", self.seed, 0, SEEDS - 1)
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        stop = tuple(stop) if isinstance(stop, Iterable) else (stop,)
        _require(
            all(isinstance(text, str) and text for text in stop),
            "stop must be a string or several, none of them empty.",
        )
        _require(
            len(stop) <= MOST_STOPS and all(len(text) <= LONGEST_STOP for text in stop),
            f"stop may be at most {MOST_STOPS} strings of at most {LONGEST_STOP} characters: every new token is "
            "checked against all of them.",
        )
        _require(
            not any("\ud800" <= sign <= "\udfff" for text in stop for sign in text),
            "stop must be valid text: it contains half a character (a lone surrogate).",
        )
        object.__setattr__(self, "stop", stop)
        _require(isinstance(self.ignore_eos, bool), f"ignore_eos must be True or False, not {self.ignore_eos!r}.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@functools.cache
def _choices(name: str) -> tuple[str, ...]:
    """The values that a setting may have. Cached: working them out takes longer than all other checks together."""
    return get_args(get_type_hints(EngineConfig)[name])


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    _require(value in allowed, f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}.")


def require_whole(name: str, value: object, low: int, high: int) -> None:
    """Raises ConfigError unless ``value`` is a whole number from ``low`` to ``high``."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    _require(whole and low <= value <= high, f"{name} must be a whole number from {low:,} to {high:,}, not {value!r}.")


def _real(name: str, value: object, low: float, high: float) -> None:
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    _require(real and low <= value <= high, f"{name} must be a number from {low} to {high}, not {value!r}.")
