"""The maintainers' measurements: ``python -m lab.bench NAME``, one for each entry of ``MEASUREMENTS``; and ``gpu``."""

import argparse
import functools
import importlib
import signal
import sys
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during start-up ends silently; later see ``main``

import torch
from transformers.utils import logging as transformers_logging

from lab import Engine, LabError, load_engine
from lab.backends.cpu.cpu_count import threads
from lab.bench.gpu.session import PARTS, run_gpu
from lab.bench.output import format_record, writable, write
from lab.cli.arguments import DEFAULT, INTERRUPTED, READ_ENOUGH, Parser, add_pair, path
from lab.engine.failures import explain
from lab.models.devices import best_device, resolve_device
from lab.models.loader import resolve_dtype
from lab.util.device_memory import is_out_of_memory
from lab.util.machine_info import describe_machine
from lab.util.stdio import Output, print_notes, print_utf8

Options = Mapping[str, Mapping[str, Any] | int]
"""By option: arguments of ``add_argument``, as ``measurements.toml`` has them, or the default of a common one."""


@dataclass(frozen=True)
class Measurement:
    """A measurement. In its module is ``run_NAME``, which gives what is recorded beside the models and the options
    that are numbers.

    ``run_NAME`` is called with the engine, ``report`` and the options by name. Where there is a ``read_NAME``, it makes
    these of the parsed ones before a model is loaded: it reads files and checks settings.

    Attributes:
        module: imported when it is asked for: some need packages or versions that others do not.
        draft: whether speculation with a draft is measured; another target then needs another draft.
        both: whether a draft that is seldom accepted is measured too: in place of the engine, ``run_NAME`` gets a
            function from "matched" or "mismatched" to one.
    """

    module: str
    help: str
    options: Options
    draft: bool = True
    both: bool = False


DATA = tomllib.loads(Path(__file__).with_name("measurements.toml").read_text("utf-8"))
COMMON: Options = DATA.pop("common")
MEASUREMENTS = {name: Measurement(**entry) for name, entry in DATA.items()}
TYPES = {"path": path, "float": float, "int": int}


def whole(least: int, why: str) -> Callable[[str], int]:
    """A reader of whole numbers of at least ``least``. ``why``: what they are needed for."""

    def read(text: str) -> int:
        with suppress(ValueError):
            if (given := int(text)) >= least:
                return given
        raise argparse.ArgumentTypeError(f"a whole number of at least {least}{why and f' ({why})'}, not {text!r}")

    return read


PART_TITLES = "; ".join(f"{number}: {part.title}" for number, part in PARTS.items())
GPU_OPTIONS: Options = {
    "part": {
        "metavar": "N",
        "type": "int",
        "nargs": "+",
        "choices": list(PARTS),
        "help": f"{PART_TITLES}. Default: all.",
    },
    "device": {"default": best_device(), "help": "cpu, cuda, cuda:1."},
    "dtype": {"default": "auto", "help": "float32, bfloat16 or float16."},
    "small": {"action": "store_true", "help": "tiny shapes: to try the bench itself, in seconds on a CPU"},
}


def commands() -> Parser:
    """A command for each measurement, which sets ``fail``."""
    parser = Parser(prog="python -m lab.bench", description=__doc__)
    benches = parser.add_subparsers(dest="bench", required=True)
    for name, one in MEASUREMENTS.items():
        command = benches.add_parser(name, help=one.help)
        add_pair(command)
        _add_options(command, name, one.options)
        if one.both:
            about = "a draft that is seldom accepted: a folder or hub id. Default: the embedded one."
            command.add_argument("--mismatched", metavar="DRAFT", help=about)
    gpu = benches.add_parser("gpu", help="what a GPU does with the engine, in some eight minutes")
    _add_options(gpu, "gpu", GPU_OPTIONS)
    return parser


def _add_options(command: argparse.ArgumentParser, name: str, options: Options) -> None:
    there = Path(f"runs/bench/{name}.json")
    command.add_argument("--json", type=path, default=there, metavar="FILE", help=f"the record. {DEFAULT}")
    for option, given in options.items():
        how = {**COMMON.get(option, {}), **({"default": given} if isinstance(given, int) else given)}
        if "least" in how:
            how |= {"metavar": "N", "type": whole(how.pop("least"), how.pop("why", ""))}
        elif "type" in how:
            how["type"] = TYPES[how["type"]]
        if how.get("default", "") != "":
            how["help"] += f" {DEFAULT}"
        command.add_argument(f"--{option}", **how)
    command.set_defaults(fail=command.error)


def main() -> int:
    """Measure, print the table and write the record, whatever becomes of the output.

    Returns:
        The exit status: 0, 1 (a part of the GPU's bench did not come to its end), 2 (the user can mend it), 130
        (interrupted) or 141 (the output's reader has closed the pipe).
    """
    parser = commands()
    args = parser.parse_args()
    print_utf8()
    transformers_logging.set_verbosity_error()
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    torch.set_num_threads(threads())  # as many for all that is compared
    output, gpu = Output(), args.bench == "gpu"
    try:
        whole = (_measure_gpu if gpu else _measure)(args, output.say)
    except LabError as error:
        args.fail(str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        args.fail(explain(error))
    except KeyboardInterrupt:
        rest = f"What was measured is in {args.json}." if gpu else "Nothing is written."
        print_notes([f"{parser.prog} {args.bench}: interrupted before the end. {rest}"])
        return INTERRUPTED
    if isinstance(output.failure, BrokenPipeError):
        return READ_ENOUGH
    if output.failure:
        args.fail(f"the output cannot be written: {output.failure.strerror}.")
    return 0 if whole else 1


def _measure_gpu(args: argparse.Namespace, report: Callable[[str], None]) -> bool:
    """True if all of it was measured. Raises LabError."""
    resolve_dtype(args.dtype, resolve_device(args.device))
    with writable(args.json):
        result = run_gpu(
            args.part or list(PARTS), args.json, report, device=args.device, dtype=args.dtype, small=args.small
        )
    report(f"\n{format_record(result)}\n\nwritten to {args.json}")
    return not any("failure" in entry for entry in result["parts"].values())


def _measure(args: argparse.Namespace, report: Callable[[str], None]) -> bool:
    """Do the measurement that was asked for. Raises LabError."""
    device = resolve_device(args.device)
    resolve_dtype(args.dtype, device)
    name, one = args.bench, MEASUREMENTS[args.bench]
    module = importlib.import_module(one.module)
    with writable(args.json):
        given = {dest: getattr(args, dest) for dest in (option.replace("-", "_") for option in one.options)}
        options = read(args) if (read := getattr(module, f"read_{name}", None)) else given
        if one.draft and args.target and not args.draft:
            raise LabError("this bench measures speculation with a draft: name a --draft too")
        fell_back: list[str] = []
        load = functools.cache(functools.partial(_load, args, report, fell_back))
        result = getattr(module, f"run_{name}")(load if one.both else load("matched"), report=report, **options)
        engine = load("matched")
        record = {"bench": name, "machine": describe_machine(device), "fell_back": fell_back, "dtype": engine.dtype}
        record |= {"target": engine.target.name, "draft": engine.draft.name if engine.draft else None}
        record |= {dest: value for dest, value in given.items() if type(value) is int} | result
        report(f"\n{format_record(record)}\n")  # first, because writing the file may fail
        write(args.json, record)
    report(f"written to {args.json}")
    return True


def _load(args: argparse.Namespace, report: Callable[[str], None], fell_back: list[str], pair: str) -> Engine:
    """The engine of a pair, "matched" (the models that were named) or "mismatched": that may take minutes.

    If torch has to compute its steps in place of C, the report and the record say so: no run would be refused for that.
    """
    if pair == "mismatched" and args.target and not args.mismatched:
        raise LabError("the mismatched draft is the embedded target's: name a --mismatched too")
    draft = args.draft if pair == "matched" else args.mismatched or "mismatched"
    engine = load_engine(args.target, draft, device=args.device, dtype=args.dtype)
    if (failure := engine.kernel_failure) and failure not in fell_back:
        fell_back.append(failure)
        report(failure)
    return engine


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
