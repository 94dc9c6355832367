"""The engine's settings as text, read and written."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lab.config import EngineConfig
from lab.errors import ConfigError


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
    """Text that ``parse_config`` reads as ``config``: fields that are not at their defaults, ``speculative`` first."""
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
