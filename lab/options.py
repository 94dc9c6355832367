"""The engine's settings as options of a command line.

Names, types, defaults and descriptions are written once, in the settings' own classes: options are made from them.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import io
import os
import re
import sys
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from lab.config import ConfigError, EngineConfig, SamplingParams, listed

Settings = TypeVar("Settings")
DEFAULT = "Default: %(default)s."
"""How an option's help ends."""
INTERRUPTED, READ_ENOUGH = 128 + 2, 128 + 13
"""Exit statuses of commands, as a shell reports them for programs ended by SIGINT or SIGPIPE."""


class Parser(argparse.ArgumentParser):
    """Says in one sentence what is wrong with the arguments, and nothing else."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def print_utf8() -> None:
    """Print UTF-8, wherever it goes: a run's file has to be, and so is all else. On Windows, what does not go to a
    terminal would be in an encoding that lacks most of the characters that models, pages and Gradio print."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def typed(argument: str) -> str:
    """The type of an option that is text. Bytes that are no character in the locale's encoding come as lone surrogates
    (PEP 383), in the C locale all but ASCII: these are read as UTF-8.

    Raises:
        ArgumentTypeError: it is not valid text.
    """
    if not any("\udc80" <= sign <= "\udcff" for sign in argument):
        return argument
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeError as error:
        raise argparse.ArgumentTypeError(
            f"not text in UTF-8: byte {error.start} begins no character. Set the terminal to UTF-8."
        ) from None


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
        given[name] = _value(name, value, hints[name])
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


def _value(name: str, text: str, hint: Any) -> Any:
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


def add_settings(parser: argparse.ArgumentParser, settings: type, *, without: Collection[str] = ()) -> None:
    """Add an option for every field not in ``without``: ``--kv-dtype`` for ``kv_dtype``, ``--paged`` or ``--no-paged``
    for a toggle."""
    hints, about = get_type_hints(settings), described(settings)
    group = parser.add_argument_group(settings.__name__)
    for field in (field for field in fields(settings) if field.name not in without):
        option, words = f"--{field.name.replace('_', '-')}", about[field.name].replace("%", "%%")
        hint = hints[field.name]
        if hint is bool:
            kind: dict[str, Any] = {"action": argparse.BooleanOptionalAction, "default": field.default}
        elif get_origin(hint) is tuple:
            kind = {"action": "append", "type": typed, "default": list(field.default), "metavar": "TEXT"}
            words += " May be given several times."
        else:
            kind = {"type": _reader(field.name, hint), "default": field.default}
            choices = get_args(hint) if get_origin(hint) is Literal else None
            kind |= {"choices": choices} if choices else {"metavar": "N"}
        group.add_argument(option, help=f"{words} Default: {_said(field.default)}.", **kind)


def read_settings(settings: type[Settings], options: argparse.Namespace) -> Settings:
    """The settings that the options of ``add_settings`` give. Raises what the class raises."""
    given = vars(options)
    return settings(**{field.name: given[field.name] for field in fields(settings) if field.name in given})


def path(text: str) -> Path:
    """The type of an option that names a file or folder: a shell does not expand ``--json=~/x.json``."""
    return Path(os.path.expanduser(text))


def add_pair(parser: argparse.ArgumentParser) -> None:
    """Add options for the models, their device and dtype: arguments of ``load_engine``."""
    group = parser.add_argument_group("models")
    place = {"type": os.path.expanduser}  # a shell does not expand --target=~/model
    about = "folder or hub id. Default: the embedded pair, which needs no network."
    group.add_argument("--target", **place, help=about)
    about = "folder or hub id; for the embedded target also matched or mismatched. Default: matched there, else none."
    group.add_argument("--draft", **place, help=about)
    group.add_argument("--device", help="cpu, cuda, cuda:1. Default: a GPU if there is one.")
    group.add_argument("--dtype", default="auto", help="float32, bfloat16 or float16. Default: auto.")


def _reader(name: str, hint: Any) -> Any:
    def read(text: str) -> Any:
        try:
            return _value(name, text, hint)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _said(default: Any) -> Any:
    if isinstance(default, bool):
        return "on" if default else "off"
    return "none" if default in (None, ()) else default
