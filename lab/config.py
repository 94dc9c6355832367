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
    """Settings of the engine for one request.

    The first eleven settings belong to a pool of cache blocks: requests that agree on
    them share one pool and are computed in one batch. The others are a request's own.

    Attributes:
        kv_cache: keep the keys and values of past tokens. Off: every step
            computes the whole sequence again.
        kv_dtype: what a cache slot holds. "auto" is the model's own dtype,
            "int8" one byte per number and a float32 scale per token and KV head,
            "int4" half a byte per number and a bfloat16 scale per group of numbers.
        paged: hand out cache blocks as they fill. Off: a sequence's whole run
            of blocks is reserved, side by side, when it starts.
        block_size: token positions in a block.
        num_blocks: blocks in the pool. None: as free memory allows.
        enable_prefix_caching: full blocks stay findable by their tokens; a prompt that
            begins like an earlier one shares its blocks and computes only the rest.
        eviction: which cached prefix is given up for a new block. "lru": the least
            recently used one. "priority": the one with the lowest ``cache_priority``, then as "lru".
        prefill_attention: what computes attention when several known tokens of a sequence are read at once, above
            all the target's prompt. "auto": what computes all steps (``kernels``), or torch's own choice where that is
            torch. "math", "efficient" and "flash" are torch's back ends (scaled_dot_product_attention); one that
            does not run with this model on this device is refused.
        kernels: what computes a step. "auto": the best that the engine has (``Engine``: Triton's kernels on a GPU, a
            step in C on a CPU). "reference": torch, operation by operation.
        cuda_graphs: launch a small step's kernels on a GPU all together (``lab.backends.gpu.cuda_graphs``). Off:
            one by one, to see what launching costs. Where there is nothing to capture it changes nothing.
        torch_compile: compile the layers that torch computes, which takes some seconds the first time. A step in C
            has no use for it and refuses it.
        cache_priority: priority of the prefixes this request leaves behind, 0 to 9.
        speculative: who proposes tokens for the target to verify in one pass. "draft": a second,
            smaller model. "ngram": the text itself, what followed its last few tokens earlier
            (prompt lookup). "early_exit": the target's own first layers. "synthetic": the
            target's own next token, right with a chosen probability; it costs nothing and is no
            drafter, but shows how speed follows acceptance. "off": nobody.
        num_speculative_tokens: gamma, the tokens proposed per round; with ``adaptive_window`` the most.
        adaptive_window: let gamma follow recent acceptance and measured costs (``lab.engine.adaptive_window``).
        prompt_lookup_min, prompt_lookup_max: tokens that must match for "ngram"; longer matches first.
        early_exit_layer: layers that "early_exit" computes. None: a quarter of them.
        synthetic_acceptance_rate: probability that a "synthetic" proposal is right.

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
    """Rules for choosing the next token, and for stopping.

    Attributes:
        max_tokens: most tokens to generate.
        temperature: logits are divided by it; 0 takes the likeliest token (greedy).
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens until their probabilities reach p; 1 keeps all.
        seed: makes the random draws repeatable. None: the engine picks one and records it.
        stop: the text ends before the first of these strings.
        ignore_eos: go on past the end-of-text token.
        logprobs: for each judged proposal, record this many of the likeliest tokens under target, draft and
            residual (the ``Distributions`` event); 0 records none. The name is vLLM's and OpenAI's; what is
            recorded are probabilities, p and q.

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
