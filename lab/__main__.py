"""The lab without a page: ``python -m lab run "Once upon a time" --speculative draft``."""

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NoReturn, get_args

from lab.cli.arguments import DEFAULT, INTERRUPTED, READ_ENOUGH, Parser, add_pair, add_settings
from lab.config import EngineConfig, KVFormat, SamplingParams
from lab.errors import LabError
from lab.memory.catalogue import GPU_KEYS, MODELS, WEIGHT_BITS
from lab.util.stdio import discard, print_notes, print_utf8


class _Prompted(Parser):
    """Explains a missing prompt: it may be one that argparse took for an option."""

    def error(self, message: str) -> NoReturn:
        if re.match("unrecognized arguments: -[^-]|the following arguments are required: prompt", message):
            message += ". A text that begins with a dash comes after all options and a lone --: --max-tokens 8 -- -x"
        super().error(message)


def commands() -> Parser:
    """The parser of all commands: each is carried out by the function of its name in ``lab.cli.commands``."""
    parser = _Prompted(prog="python -m lab", description="Decode without a page, or work out what fits.")
    added = parser.add_subparsers(dest="command", required=True)
    _add_run(added)
    _add_chat(added)
    _add_compare(added)
    _add_fit(added)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns the exit status: 0, 1 (a run failed), 2 (an error that the user can fix), 130
    (interrupted) or 141 (the reader of the output has closed it)."""
    parser = commands()
    options = parser.parse_args(arguments)
    print_utf8()
    command = _imported(options.command)
    try:
        status = command(options)
        if sys.stdout:  # None if whoever started this closed it
            sys.stdout.flush()  # here, where an error can be reported
        return status
    except LabError as error:
        print_notes([f"{parser.prog} {options.command}: {error}"])
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # of the output: an error in reading a file becomes a LabError there
        discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return READ_ENOUGH
        print_notes([f"{parser.prog} {options.command}: the output cannot be written: {error.strerror}."])
        return 2


def _imported(command: str) -> Callable[[argparse.Namespace], int]:
    """A command. It needs torch and transformers, which take seconds: what can be said without them has been said
    before. Ctrl-C raises only when they are there."""
    do = getattr(import_module("lab.cli.commands"), command)
    from transformers.utils import logging

    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return do


def _add_run(commands: Any) -> None:
    command = commands.add_parser("run", help="decode a prompt; the text goes to standard output as it is generated")
    _add_prompt(command)
    shown, switch = command.add_mutually_exclusive_group(), "store_true"
    shown.add_argument("--json", action=switch, help="print the run's file, to open in the page, instead of the text")
    shown.add_argument("--metrics", action=switch, help="print the run's figures as JSON, instead of the text")
    add_pair(command)
    add_settings(command, EngineConfig)
    add_settings(command, SamplingParams)


def _add_chat(commands: Any) -> None:
    about = (
        "Messages go through the model's own chat template. After each answer: how many of the prompt's tokens were "
        "found in the prefix cache. Ctrl-C ends an answer, Ctrl-D the chat. Standard input that is no terminal is one "
        "message."
    )
    command = commands.add_parser("chat", help="talk with a model that has a chat template", description=about)
    command.add_argument("--system", metavar="TEXT", help="the system message. Default: none.")
    thinking, how = "whether the model thinks first. Default: as its template has it.", argparse.BooleanOptionalAction
    command.add_argument("--thinking", action=how, default=None, help=thinking)
    add_pair(command)
    add_settings(command, EngineConfig)
    add_settings(command, SamplingParams, without=("parse_special",))
    command.set_defaults(paged=True, enable_prefix_caching=True, max_tokens=512)


def _add_compare(commands: Any) -> None:
    about = "All runs share a seed and go on past an end of text, so that all are of one length."
    what = "compare two to five settings on a prompt, in turn"
    command = commands.add_parser("compare", help=what, description=about)
    _add_prompt(command)
    about = "each as kv_dtype=int8,paged=true; '' is the default settings. The others are compared with the first."
    command.add_argument("settings", nargs="+", help=about)
    _add_number(command, "--repeats", int, 3, "runs of each, in changing order.")
    _add_number(command, "--seed", int, 0, "of the random draws of every run.")
    command.add_argument("--json", action="store_true", help="print all figures as JSON, not a table")
    add_pair(command)
    add_settings(command, SamplingParams, without=("seed", "stop", "stop_token_ids", "ignore_eos", "logprobs"))


def _add_fit(commands: Any) -> None:
    command = commands.add_parser("fit", help="what a model and its cache take on a GPU: arithmetic, nothing is loaded")
    about = f"{', '.join(MODELS)}; a folder with a config.json, or a hub id"
    command.add_argument("model", type=os.path.expanduser, help=about)
    device = command.add_mutually_exclusive_group()
    about = f"{', '.join(GPU_KEYS)}. {DEFAULT}"
    device.add_argument("--gpu", choices=GPU_KEYS, default="h100-80-gb", metavar="GPU", help=about)
    device.add_argument("--memory", type=float, metavar="GIB", help="that of another device. Default: the GPU's.")
    about = f"what a layer's parameter is stored as; the embedding table and the head have 16 bits or more. {DEFAULT}"
    command.add_argument("--weights", choices=WEIGHT_BITS, default="bfloat16", help=about)
    about = f"what a cached number is stored as; auto is bfloat16, or float32 with such weights. {DEFAULT}"
    command.add_argument("--kv-dtype", choices=get_args(KVFormat), default="auto", help=about)
    about = "layers with 16 bits, or 32: like '0 15', or sliding_window. Default: none."
    command.add_argument("--kv-cache-dtype-skip-layers", default="", metavar="LAYERS", help=about)
    reserved = "share of the memory that is kept for activations and the driver."
    _add_number(command, "--set-aside", float, 0.1, reserved)
    _add_number(command, "--mean", float, 500, "mean length of a sequence in tokens.")
    _add_number(command, "--longest", int, 4096, "tokens of the longest sequence.")
    _add_number(command, "--block-size", int, 16, "tokens of a block of the cache.")
    command.add_argument("--json", action="store_true", help="print all figures as JSON, not a table")


def _add_number(command: argparse.ArgumentParser, option: str, kind: type, default: float, about: str) -> None:
    command.add_argument(option, type=kind, default=default, metavar="N", help=f"{about} {DEFAULT}")


def _add_prompt(command: argparse.ArgumentParser) -> None:
    about = "the text to go on from; - reads it from standard input. One that begins with a dash comes last, after --"
    command.add_argument("prompt", help=about)
    command.add_argument("--token-ids", action="store_true", help="the prompt is token ids, such as 1,262")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it quietly while it is still importing
    sys.exit(main())
