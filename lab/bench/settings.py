"""Settings of the engine as a command line gives them."""

from __future__ import annotations

from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from lab.config import ConfigError, EngineConfig


def parse_config(text: str) -> EngineConfig:
    """``"kv_dtype=int8, paged=true"``: fields of EngineConfig, separated by commas. "": the defaults.

    Raises:
        ConfigError: not of that form, an unknown or repeated field, or a value the field cannot have.
    """
    hints = get_type_hints(EngineConfig)
    given: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise ConfigError(f"{part!r} is no setting: write field=value, several separated by commas.")
        if name not in hints:
            raise ConfigError(f"there is no setting {name!r}; there are {', '.join(hints)}.")
        if name in given:
            raise ConfigError(f"{name} is set twice.")
        given[name] = _value(name, value, hints[name])
    return EngineConfig(**given)


def _value(name: str, text: str, hint: Any) -> Any:
    """``text`` as the field's type; EngineConfig itself checks ranges and choices."""
    if get_origin(hint) is Literal:
        return text
    allowed = get_args(hint) or (hint,)  # int, or int | None
    if bool in allowed:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name} is true or false, not {text!r}.")
        return text.lower() == "true"
    if NoneType in allowed and text.lower() == "none":
        return None
    try:
        return float(text) if float in allowed else int(text)
    except ValueError:
        kind = "number" if float in allowed else "whole number"
        raise ConfigError(f"{name} is a {kind}{' or none' * (NoneType in allowed)}, not {text!r}.") from None
