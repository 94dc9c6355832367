"""A user's choices: the engine's toggles, the sampling of one request, and both as text.

Every error that a wrong choice can cause is raised here, or is of a type in ``lab.errors``, with a sentence that says
what would be right.
"""

import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lab.errors import ConfigError

KVFormat = Literal["auto", "int8", "int4", "fp8", "fp8_per_token_head", "int4_per_token_head", "turboquant_3bit_nc"]
RejectionSampleMethod = Literal["standard", "block", "typical"]
EMBEDDED_TARGET = "stories"
"""Name of the target that comes with the lab."""
MOST_PROPOSED = 32
"""Most tokens proposed in a round."""
HIGHEST_PRIORITY = 9
"""The highest priority of cached blocks; the lowest is 0."""
LEAST_POSITIVE = 1e-4
"""The least temperature above 0, and the least top_p: with less, divided logits and sums are not finite in float32."""
SEEDS = 2**32
"""How many seeds there are: a CPU's generator (mt19937) takes 32 bits, and ignores the rest of a larger number."""
BOUNDS: dict[str, tuple[float, float]] = {
    "block_size": (1, 1024),
    "num_blocks": (1, 10_000_000),
    "cache_priority": (0, HIGHEST_PRIORITY),
    "num_speculative_tokens": (1, MOST_PROPOSED),
    "prompt_lookup_min": (1, 32),
    "prompt_lookup_max": (1, 32),
    "early_exit_layer": (1, 10_000),
    "synthetic_acceptance_rate": (0.0, 1.0),
    "max_tokens": (1, 1_000_000),
    "temperature": (0.0, 100.0),
    "top_k": (0, 10_000_000),
    "top_p": (LEAST_POSITIVE, 1.0),
    "seed": (0, SEEDS - 1),
    "logprobs": (0, 20),
    "top_tokens": (0, 20),
}
"""The least and the most of every number below; pages offer these or fewer (``lab.settings``)."""
SLIDING_WINDOW = "sliding_window"
"""In ``kv_cache_dtype_skip_layers``: all layers that have a window."""
MOST_STOPS = 16
MOST_STOP_TOKENS = 100
LONGEST_STOP = 200
"""Most characters of a stop string."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The engine's settings for one request; ``lab.settings`` has a line on each.

    Requests that agree on the first twelve share one pool of cache blocks and are computed in one batch.

    Attributes:
        kv_dtype: "int8": one byte per number and a float32 scale per token and KV head. "int4": half a byte per
            number and a bfloat16 scale per group of numbers. The others, which torch computes whatever ``kernels``
            says, are vLLM's: ``lab.kv_cache.float8``, ``rotated``.
        kv_cache_dtype_skip_layers: layers of the target whose keys and values keep its dtype: numbers from 0, and
            "sliding_window" for all that have a window. As text, or a list, as in vLLM.
        num_blocks: None: as free memory allows.
        eviction: "priority" evicts the prefix with the lowest ``cache_priority``, then the least recently used.
        prefill_attention: attention where several known tokens of a sequence are read at once. "auto": that of
            ``kernels``. The others are back ends of torch's scaled_dot_product_attention.
        kernels: "auto": Triton on a GPU, C on a CPU. "reference": torch, operation by operation.
        speculative: "synthetic" proposes the target's own next token, right with ``synthetic_acceptance_rate``, at no
            cost: it shows how speed follows acceptance.
        num_speculative_tokens: gamma; with ``adaptive_window`` the most. A DFlash head drafts fewer than its block
            size.
        early_exit_layer: None: a quarter of the layers.
        rejection_sample_method: rule of acceptance above temperature 0, where a drafter has probabilities
            (``lab.backends.torch.rejection_sampler``). "typical" is lossy: text is not drawn from the target alone. At
            temperature 0 every rule accepts the target's likeliest tokens.
        num_speculative_tokens_per_batch_size: gamma by the number of sequences that run at once (``gamma_table``), but
            never above ``num_speculative_tokens``. "": the same for any number.
        draft_sample_method: "greedy": above temperature 0, too, a draft proposes its likeliest token, and q is 1 on it.

    Raises:
        ConfigError: a value out of range, or a setting of the cache without a cache.
    """

    kv_cache: bool = True
    kv_dtype: KVFormat = "auto"
    kv_cache_dtype_skip_layers: str = ""
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
    speculative: Literal["off", "draft", "eagle3", "mtp", "dflash", "dspark", "ngram", "early_exit", "synthetic"] = (
        "off"
    )
    num_speculative_tokens: int = 4
    num_speculative_tokens_per_batch_size: str = ""
    adaptive_window: bool = False
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    early_exit_layer: int | None = None
    synthetic_acceptance_rate: float = 0.7
    rejection_sample_method: RejectionSampleMethod = "standard"
    draft_sample_method: Literal["probabilistic", "greedy"] = "probabilistic"

    @property
    def gamma_varies(self) -> bool:
        return self.adaptive_window or bool(self.num_speculative_tokens_per_batch_size)

    def __post_init__(self) -> None:
        _require_types(self)
        table = " ".join(f"{a}-{b}:{gamma}" for a, b, gamma in gamma_table(self.num_speculative_tokens_per_batch_size))
        object.__setattr__(self, "num_speculative_tokens_per_batch_size", table)
        skipped = " ".join(map(str, layer_list(self.kv_cache_dtype_skip_layers)))
        object.__setattr__(self, "kv_cache_dtype_skip_layers", skipped)
        require_whole("prompt_lookup_min", self.prompt_lookup_min, 1, self.prompt_lookup_max)
        _require(
            self.kv_cache or self.kv_dtype == "auto",
            f"kv_dtype={self.kv_dtype!r} sets how cached keys and values are stored, and kv_cache is off: nothing "
            "is stored. Turn the cache on, or leave kv_dtype at 'auto'.",
        )
        _require(
            self.kv_cache or not self.paged,
            "paged=True decides where cached keys and values go, and kv_cache is off: there are no blocks "
            "to hand out. Turn the cache on, or paged off.",
        )
        _require(
            self.paged or not self.enable_prefix_caching,
            "enable_prefix_caching=True lets sequences share blocks, and a contiguous sequence has a run of blocks "
            "of its own. Set paged=True, or enable_prefix_caching=False.",
        )


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Choice of the next token, and when to stop; ``lab.settings`` has a line on each setting.

    Attributes:
        seed: None: the engine picks one and records it.
        stop: one that is a special token's name is that token.
        stop_token_ids: the text ends with the first of these tokens, whatever ``ignore_eos`` says, as in vLLM.
        parse_special: the name of a special token in the prompt is that token, and not text. The name is llama.cpp's.
        logprobs: so many of the likeliest tokens under target, draft and adjusted distribution are recorded for each
            verified draft token (the ``Distributions`` event), as probabilities. The name is vLLM's and OpenAI's.
        top_tokens: so many of the target's likeliest tokens are recorded at each position of the output, and the
            entropy there (``Committed``).

    Raises:
        ConfigError: a value out of range.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    parse_special: bool = False
    logprobs: int = 0
    top_tokens: int = 0

    def __post_init__(self) -> None:
        _require_types(self)
        _require(
            self.temperature == 0 or self.temperature >= LEAST_POSITIVE,
            f"temperature must be 0 (greedy) or at least {LEAST_POSITIVE}.",
        )
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
        ids = self.stop_token_ids
        ids = tuple(ids) if isinstance(ids, Iterable) and not isinstance(ids, str) else () if ids is None else (ids,)
        _require(
            len(ids) <= MOST_STOP_TOKENS and all(type(each) is int and each >= 0 for each in ids),
            f"stop_token_ids must be at most {MOST_STOP_TOKENS} token ids, whole numbers from 0.",
        )
        object.__setattr__(self, "stop_token_ids", ids)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


_hints = functools.cache(get_type_hints)
"""Cached: working them out takes longer than all checks together."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _require_types(settings: EngineConfig | SamplingParams) -> None:
    """Raises ConfigError unless switches are switches, choices are offered, and numbers are within ``BOUNDS``."""
    for name, hint in _hints(type(settings)).items():
        value = getattr(settings, name)
        if hint is bool:
            _require(isinstance(value, bool), f"{name} must be True or False, not {value!r}.")
        elif get_origin(hint) is Literal:
            allowed = get_args(hint)
            _require(value in allowed, f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}.")
        elif name in BOUNDS and (value is not None or NoneType not in get_args(hint)):
            (_require_real if hint is float else require_whole)(name, value, *BOUNDS[name])


def require_whole(name: str, value: object, low: int, high: int) -> None:
    """Raises ConfigError unless ``value`` is a whole number from ``low`` to ``high``."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    _require(whole and low <= value <= high, f"{name} must be a whole number from {low:,} to {high:,}, not {value!r}.")


def _require_real(name: str, value: object, low: float, high: float) -> None:
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    _require(real and low <= value <= high, f"{name} must be a number from {low} to {high}, not {value!r}.")


# -- as text -------------------------------------------------------------------------------------


def parse_token_ids(text: str) -> list[int]:
    """``"1, 262"`` or ``"[1, 262]"``: token ids. "": none. Raises ConfigError: not of that form."""
    ids = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    odd = next((one for one in ids if not (one.isascii() and one.isdecimal() and len(one) < 10)), None)
    _require(odd is None, f"{str(odd)[:40]!r} is not a token id: write whole numbers such as 1, 262.")
    return [int(one) for one in ids]


def layer_list(given: str | Iterable[int | str]) -> list[int | str]:
    """Each number of a layer once, in order, then "sliding_window" if it is among them. ``given``: like ``"0 15"``, or
    as vLLM has it, ["0", "15"]. Raises ConfigError: not of that form."""
    many = given.replace(",", " ").split() if isinstance(given, str) else given
    words = {str(word) for word in (many if isinstance(many, Iterable) else [many])}
    windows = sorted(words & {SLIDING_WINDOW})
    odd = sorted(word for word in words - {*windows} if not (word.isascii() and word.isdecimal() and len(word) < 5))
    _require(
        not odd,
        f"kv_cache_dtype_skip_layers has {(odd or [''])[0][:40]!r}, and takes numbers of layers, from 0, and "
        f"{SLIDING_WINDOW!r}. Write it like '0 15'.",
    )
    return [*sorted({int(word) for word in words - {*windows}}), *windows]


def gamma_table(given: str | Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    """The least and the most of several batch sizes and their number of draft tokens, row by row.

    ``given``: like ``"1-4:4 5-16:2 17-64:0"``, or as vLLM has it, [[1, 4, 4], [5, 16, 2], [17, 64, 0]]. "": no rows.

    Raises:
        ConfigError: not of that form, a gap, or too many draft tokens.
    """
    text = (given if isinstance(given, str) else json.dumps(given, default=str)).strip()
    rows: list[tuple[int, int, int]] = []
    if text.startswith("[[") and text.endswith("]]"):
        text = re.sub(r"\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]\s*(,|\]$)", r"\1-\2:\3 ", text[1:])
    for part in text.split() if text != "[]" else ():
        found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?:(\d{1,6})", part)
        first, last, gamma = (int(number or found[1]) for number in found.groups()) if found else (0, 0, 0)
        follows = first == (rows[-1][1] + 1 if rows else 1)
        _require(
            follows and first <= last and gamma <= MOST_PROPOSED,
            f"num_speculative_tokens_per_batch_size has the row {part[:40]!r}, and needs batch sizes from 1 on without "
            f"a gap, each row with 0 to {MOST_PROPOSED} draft tokens. Write it like '1-4:4 5-16:2 17-64:0'.",
        )
        rows.append((first, last, gamma))
    return rows


def parse_config(text: str) -> EngineConfig:
    """``"kv_dtype=int8, paged=true"``: fields of EngineConfig, separated by commas. "": the defaults.

    Raises:
        ConfigError: not of that form, an unknown or repeated field, or a value the field cannot have.
    """
    hints = _hints(EngineConfig)
    given: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        _require(bool(equals and value), f"{part!r} is not a setting: write field=value, several separated by commas.")
        _require(name in hints, f"there is no setting {name!r}; there are {', '.join(hints)}.")
        _require(name not in given, f"{name} is set twice.")
        given[name] = field_value(name, value, hints[name])
    return EngineConfig(**given)


def parse_configs(texts: Sequence[str]) -> dict[str, EngineConfig]:
    """Several configurations by name: their text, or "default". Raises ConfigError, which names the wrong one."""
    configs: dict[str, EngineConfig] = {}
    for text in texts:
        name = text.strip() or "default"
        _require(name not in configs, f"{name} is listed twice.")
        try:
            configs[name] = parse_config(text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
    return configs


def config_text(config: EngineConfig) -> str:
    """Text that ``parse_config`` reads as ``config``: fields that are not at their defaults, ``speculative`` first."""
    changed = [field.name for field in fields(config) if getattr(config, field.name) != field.default]
    changed.sort(key=lambda name: name != "speculative")
    return ", ".join(f"{name}={str(getattr(config, name)).lower()}" for name in changed)


def field_value(name: str, text: str, hint: Any) -> Any:
    """``text`` as the field's type; the class itself checks ranges and choices."""
    if get_origin(hint) is Literal or hint is str:
        return text
    allowed = get_args(hint) or (hint,)  # int, or int | None
    if bool in allowed:
        _require(text.lower() in ("true", "false"), f"{name} must be true or false, not {text!r}.")
        return text.lower() == "true"
    if NoneType in allowed and text.lower() == "none":
        return None
    try:
        return float(text) if float in allowed else int(text)
    except ValueError:
        kind = "number" if float in allowed else "whole number"
        raise ConfigError(f"{name} must be a {kind}{' or none' * (NoneType in allowed)}, not {text!r}.") from None
