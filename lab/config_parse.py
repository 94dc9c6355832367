"""The engine's settings as text: read, written and described."""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lab.config import EngineConfig, SamplingParams
from lab.errors import ConfigError
from lab.util.messages import listed


def parse_config(text: str) -> EngineConfig:
    """``"kv_dtype=int8, paged=true"``: fields of EngineConfig, separated by commas. "": the defaults.

    Raises:
        ConfigError: not of that form, an unknown or repeated field, or a value the field cannot have.
    """
    hints = _hints(EngineConfig)
    given: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise ConfigError(f"{part!r} is not a setting: write field=value, several separated by commas.")
        if name not in hints:
            raise ConfigError(f"there is no setting {name!r}; there are {', '.join(hints)}.")
        if name in given:
            raise ConfigError(f"{name} is set twice.")
        given[name] = field_value(name, value, hints[name])
    return EngineConfig(**given)


def config_text(config: EngineConfig) -> str:
    """What ``parse_config`` reads as ``config``: the fields that are not at their defaults, ``speculative`` first."""
    given = {field.name: getattr(config, field.name) for field in fields(config)}
    changed = [field.name for field in fields(config) if given[field.name] != field.default]
    changed.sort(key=lambda name: name != "speculative")
    return ", ".join(f"{name}={str(given[name]).lower()}" for name in changed)


def parse_configs(texts: Sequence[str]) -> dict[str, EngineConfig]:
    """Several configurations by name: their text, or "default".

    Raises:
        ConfigError: one of them is listed twice or cannot be parsed (``parse_config``). It names that one.
    """
    configs: dict[str, EngineConfig] = {}
    for text in texts:
        if (name := text.strip() or "default") in configs:
            raise ConfigError(f"{name} is listed twice.")
        try:
            configs[name] = parse_config(text)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
    return configs


def idle(config: EngineConfig, sampling: SamplingParams) -> list[str]:
    """Sentences, one per reason, on settings that are not at their defaults but do nothing given the others."""
    guesses = config.speculative
    rules = {
        "where nobody guesses (speculative=off)": (
            guesses == "off",
            ("num_speculative_tokens", "adaptive_window", "logprobs"),
        ),
        "without speculative=ngram": (guesses != "ngram", ("prompt_lookup_min", "prompt_lookup_max")),
        "without speculative=early_exit": (guesses != "early_exit", ("early_exit_layer",)),
        "without speculative=synthetic": (guesses != "synthetic", ("synthetic_acceptance_rate",)),
        "without kv_cache": (not config.kv_cache, ("block_size", "num_blocks")),
        "without enable_prefix_caching": (not config.enable_prefix_caching, ("eviction", "cache_priority")),
        "without eviction=priority": (
            config.enable_prefix_caching and config.eviction != "priority",
            ("cache_priority",),
        ),
        "at temperature 0, which takes the likeliest token": (sampling.greedy, ("top_k", "top_p")),
    }
    usual, given = ({**asdict(one), **asdict(other)} for one, other in (_USUAL, (config, sampling)))
    sentences = []
    for reason, (so, names) in rules.items():
        if so and (changed := [name for name in names if given[name] != usual[name]]):
            does = "does" if len(changed) == 1 else "do"
            sentences.append(f"{listed(changed)} {does} nothing {reason}.")
    return sentences


_USUAL = EngineConfig(), SamplingParams()
_hints = functools.cache(get_type_hints)
"""Cached: working them out takes longer than reading what was given."""


def field_value(name: str, text: str, hint: Any) -> Any:
    """``text`` as the field's type; the class itself checks ranges and choices."""
    if get_origin(hint) is Literal:
        return text
    allowed = get_args(hint) or (hint,)  # int, or int | None
    if bool in allowed:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name} must be true or false, not {text!r}.")
        return text.lower() == "true"
    if NoneType in allowed and text.lower() == "none":
        return None
    try:
        return float(text) if float in allowed else int(text)
    except ValueError:
        kind = "number" if float in allowed else "whole number"
        raise ConfigError(f"{name} must be a {kind}{' or none' * (NoneType in allowed)}, not {text!r}.") from None


def described(settings: type) -> dict[str, str]:
    """What each field of ``settings`` does: the "Attributes" of its docstring."""
    section = inspect.getdoc(settings).partition("Attributes:\n")[2].partition("\n\n")[0]
    about = {}
    for entry in re.split(r"\n(?=\S)", textwrap.dedent(section)):  # continuations are indented
        names, _, words = entry.partition(": ")
        about |= dict.fromkeys(names.split(", "), " ".join(words.replace("``", "").split()))
    return about
