"""The engine's settings as options of a command line.

Names, types, defaults and descriptions are written once, in the settings' own classes: options are made from them.
"""

import argparse
import os
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from lab.config import field_value
from lab.errors import ConfigError
from lab.settings import SETTINGS

Settings = TypeVar("Settings")
DEFAULT = "Default: %(default)s."
"""How an option's help ends."""
INTERRUPTED, READ_ENOUGH = 128 + 2, 128 + 13
"""Exit statuses of commands, as a shell reports them for programs ended by SIGINT or SIGPIPE."""


class Parser(argparse.ArgumentParser):
    """Says in one sentence what is wrong with the arguments, and nothing else."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def add_settings(parser: argparse.ArgumentParser, settings: type, *, without: Collection[str] = ()) -> None:
    """Add an option for every field not in ``without``: ``--kv-dtype`` for ``kv_dtype``, ``--paged`` or ``--no-paged``
    for a toggle."""
    hints = get_type_hints(settings)
    group = parser.add_argument_group(settings.__name__)
    for field in (field for field in fields(settings) if field.name not in without):
        option, words = f"--{field.name.replace('_', '-')}", SETTINGS[field.name].doc.replace("%", "%%")
        hint = hints[field.name]
        if hint is bool:
            kind: dict[str, Any] = {"action": argparse.BooleanOptionalAction, "default": field.default}
        elif get_origin(hint) is tuple:
            of = get_args(hint)[0]
            kind = {"action": "append", "default": list(field.default), "metavar": "N" if of is int else "TEXT"}
            kind |= {"type": _reader(field.name, int)} if of is int else {}
            words += " May be given several times."
        else:
            kind = {"type": _reader(field.name, hint), "default": field.default}
            choices = get_args(hint) if get_origin(hint) is Literal else None
            kind |= {"choices": choices} if choices else {"metavar": "N"}
        group.add_argument(option, help=f"{words} Default: {_default_text(field.default)}.", **kind)


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
    about = "folder or hub id of an EAGLE-3 or DFlash head for the target. Default: the embedded one's own, else none."
    group.add_argument("--head", **place, help=about)
    group.add_argument("--device", help="cpu, cuda, cuda:1. Default: a GPU if there is one.")
    group.add_argument("--dtype", default="auto", help="float32, bfloat16 or float16. Default: auto.")


def _reader(name: str, hint: Any) -> Any:
    def read(text: str) -> Any:
        try:
            return field_value(name, text, hint)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _default_text(default: Any) -> Any:
    if isinstance(default, bool):
        return "on" if default else "off"
    return "none" if default in (None, (), "") else default
