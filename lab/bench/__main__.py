"""Measurements: ``python -m lab.bench ladder`` (speed of each toggle), ``kv`` (error of each
KV format), ``ab`` (two settings, quality and speed), ``serve`` (many requests at once), ``window`` (the
adaptive window against fixed ones), ``roofline`` (steps against what the device can do), ``logprobs`` (what recording
distributions costs), ``claims`` (the articles' claims, checked), ``llama`` (against llama.cpp), ``vllm`` (against a
vLLM server with the same pair), ``gpu`` (what a GPU does with the engine)."""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during start-up ends silently; later see ``main``

import torch
from transformers.utils import logging as transformers_logging

from lab import Engine, LabError, SamplingParams, load_engine
from lab.backends.cpu.cpu_count import threads
from lab.bench.ab_test import format_ab, run_ab
from lab.bench.gpu.session import SECONDS, TITLES, format_gpu, is_whole, run_gpu
from lab.bench.kv_formats_bench import format_kv, run_kv
from lab.bench.ladder import format_ladder, run_ladder
from lab.bench.llama import format_llama, run_llama
from lab.bench.logprobs_cost import format_logprobs, run_logprobs
from lab.bench.output import writable, write
from lab.bench.roofline_bench import format_roofline, run_roofline
from lab.bench.window_sweep import format_window, run_window
from lab.claims import CLAIMS
from lab.claims.report import format_claims, run_claims
from lab.cli.arguments import DEFAULT, INTERRUPTED, READ_ENOUGH, Parser, add_pair, add_settings, path, read_settings
from lab.config_parse import parse_config
from lab.engine.error_messages import explain
from lab.measure.prompts import held_out_prompts, read_text
from lab.models.devices import best_device, resolve_device
from lab.models.loader import resolve_dtype
from lab.util.device_memory import is_out_of_memory
from lab.util.machine_info import describe_machine
from lab.util.stdio import Output, print_notes, print_utf8

Result = tuple[dict, str]
"""A record and its table."""


def at_least(least: int, why: str = "") -> Callable[[str], int]:
    """The type of an option: a whole number of at least ``least``. ``why``: what they are needed for."""

    def read(text: str) -> int:
        with suppress(ValueError):
            if (number := int(text)) >= least:
                return number
        raise argparse.ArgumentTypeError(f"a whole number of at least {least}{why and f' ({why})'}, not {text!r}")

    return read


TOKENS = at_least(2, "one token to wait for, one to time")


def commands() -> Parser:
    """A command for each bench, which sets ``run`` (except for ``gpu``) and ``fail``."""
    parser = Parser(prog="python -m lab.bench", description=__doc__)
    benches = parser.add_subparsers(dest="bench", required=True)

    def bench(
        name: str, run: Callable, text: str, *, tokens: int = 0, repeats: int = 0, least: Callable[[str], int] = TOKENS
    ) -> argparse.ArgumentParser:
        """``tokens``, ``repeats``: defaults of these options; 0: no such option. ``least``: see ``at_least``."""
        command = benches.add_parser(name, help=text)
        command.set_defaults(run=run, fail=command.error)
        add_pair(command)
        there = Path(f"runs/bench/{name}.json")
        command.add_argument("--json", type=path, default=there, metavar="FILE", help=f"the record. {DEFAULT}")
        if tokens:
            number(command, "--max-tokens", least, tokens, "tokens of each output.")
        if repeats:
            number(command, "--repeats", at_least(1), repeats, "how often each row is measured, in changing order.")
        return command

    def number(command: argparse.ArgumentParser, name: str, kind: Callable, default: int, text: str) -> None:
        command.add_argument(name, type=kind, default=default, metavar="N", help=f"{text} {DEFAULT}")

    text = "each toggle's effect on speed, against transformers' own generation"
    bench("ladder", _ladder, text, tokens=128, repeats=3)
    kv = bench("kv", _kv, "what each KV format costs in quality")
    about = "text files. Default: the model card's held-out prompts."
    kv.add_argument("--text", type=path, nargs="+", metavar="FILE", help=about)
    ab = bench("ab", _ab, "two settings over the same prompts: quality and speed", tokens=64, repeats=3)
    about = "like kv_dtype=int8,speculative=draft; what --b is compared with. Default: the engine's own."
    ab.add_argument("--a", default="", metavar="SETTINGS", help=about)
    ab.add_argument("--b", required=True, metavar="SETTINGS", help="like --a. Required.")
    about = "a prompt a line. Default: the model card's held-out prompts."
    ab.add_argument("--prompts", type=path, metavar="FILE", help=about)
    add_settings(ab, SamplingParams, without=("max_tokens", "seed", "stop", "ignore_eos", "logprobs"))
    serve = bench("serve", _serve, "many requests at once against one after another, in time and in memory", repeats=3)
    number(serve, "--requests", at_least(1), 16, "how many there are.")
    number(serve, "--seed", at_least(0), 0, "of their lengths.")
    window = bench("window", _window, "the adaptive window against fixed ones", tokens=96, repeats=4)
    about = "the device's limits, and how near each kind of step comes to them"
    bench("roofline", _roofline, about, tokens=64, repeats=5, least=at_least(1))
    least = at_least(3, "the prefill's, and a round of a draft token and one more")
    about = "what recording the distributions around each verdict adds to a step"
    logprobs = bench("logprobs", _logprobs, about, tokens=96, repeats=8, least=least)
    number(logprobs, "--logprobs", at_least(1), 5, "likeliest tokens under each distribution.")
    claims = bench("claims", _claims, "the articles' claims, each with its experiment and its verdict")
    about = f"of {', '.join(CLAIMS)}. Default: all."
    claims.add_argument("--claim", nargs="+", choices=CLAIMS, metavar="ID", help=about)
    claims.add_argument("--small", action="store_true", help="sizes for a test: seconds, and figures not to be trusted")
    for command in (window, claims):
        about = "a draft that is seldom accepted: a folder or hub id. Default: the embedded one."
        command.add_argument("--mismatched", metavar="DRAFT", help=about)
    text = "the engine against llama.cpp on a CPU, the same weights and threads"
    bench("llama", _llama, text, tokens=128, repeats=5)
    text = "against a vLLM server with the same pair: the same text, and as many draft tokens accepted"
    vllm = bench("vllm", _vllm, text, tokens=128)
    about = "of the server, like http://127.0.0.1:8000. Required. A key is read from the variable VLLM_API_KEY."
    vllm.add_argument("--attach", required=True, metavar="URL", help=about)

    gpu = benches.add_parser("gpu", help="what a GPU does with the engine, in one call under eight minutes")
    gpu.set_defaults(fail=gpu.error)
    parts = sorted(TITLES)
    about = f"{'; '.join(f'{part}: {title}' for part, title in TITLES.items())}. Default: all."
    gpu.add_argument("--part", type=int, nargs="+", choices=parts, default=parts, metavar="N", help=about)
    gpu.add_argument("--device", default=best_device(), help=f"cpu, cuda, cuda:1. {DEFAULT}")
    gpu.add_argument("--dtype", default="auto", help=f"float32, bfloat16 or float16. {DEFAULT}")
    about = f"the record: a file, or an existing folder. {DEFAULT}"
    gpu.add_argument("--out", type=path, default=Path("runs/bench/gpu.json"), metavar="FILE", help=about)
    gpu.add_argument("--record", type=path, metavar="DIR", help="save a few runs there, to be replayed. Default: none.")
    about = "the most that all parts and the recording may take together; what there is no time for is left out."
    number(gpu, "--seconds", at_least(1), sum(SECONDS.values()), about)
    gpu.add_argument("--small", action="store_true", help="tiny shapes: to try the bench itself, in seconds on a CPU")
    return parser


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
    output = Output()
    args.report = output.say
    if args.bench == "gpu":
        args.out = args.out / "gpu.json" if os.path.isdir(args.out) else args.out
        older = _modified(args.out)
    try:
        whole = _measure(args)
    except LabError as error:
        args.fail(str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        args.fail(explain(error))
    except KeyboardInterrupt:
        over = args.bench == "gpu" and _modified(args.out) not in (None, older)
        rest = f"The parts that were done are in {args.out}." if over else "Nothing is written."
        print_notes([f"{parser.prog} {args.bench}: interrupted before the end. {rest}"])
        return INTERRUPTED
    if isinstance(output.failure, BrokenPipeError):
        return READ_ENOUGH
    if output.failure:
        args.fail(f"the output cannot be written: {output.failure.strerror}.")
    return 0 if whole else 1


def _modified(path: Path) -> int | None:
    """Time of modification, in nanoseconds. None: there is no such file."""
    return path.stat().st_mtime_ns if os.path.exists(path) else None  # Path's own raises where a name is too long


def _measure(args: argparse.Namespace) -> bool:
    """True if all of it was measured. Raises LabError."""
    device = resolve_device(args.device)
    resolve_dtype(args.dtype, device)
    if args.bench == "gpu":
        if args.record and os.path.isfile(args.record):
            raise LabError(f"{args.record} is a file. Name a folder for the runs.")
        where = {"device": args.device, "dtype": args.dtype, "folder": args.record}
        with writable(args.out):
            result = run_gpu(args.part, args.out, args.report, small=args.small, seconds=args.seconds, **where)
        args.report(f"\n{format_gpu(result)}\n\nwritten to {args.out}")
        return is_whole(result)
    args.fell_back = []
    with writable(args.json):
        result, table = args.run(args)
        args.report(f"\n{table}\n")  # first, because writing the file may fail
        about = {"bench": args.bench, "machine": describe_machine(device), "fell_back": args.fell_back}
        write(args.json, about | result)
    args.report(f"written to {args.json}")
    return True


def _engine(args: argparse.Namespace, *, drafting: bool = True) -> Engine:
    """The engine to measure, loaded once all other arguments have been read: that may take minutes.

    If torch has to compute its steps in place of C, the report and the record say so: no run would be refused for that.

    Raises:
        LabError: a bench with ``drafting`` and no draft; and what ``load_engine`` raises.
    """
    if drafting and args.target and not args.draft:
        raise LabError("this bench measures speculation with a draft: name a --draft too")
    engine = load_engine(args.target, args.draft, device=args.device, dtype=args.dtype)
    if failure := engine.kernel_failure:
        args.fell_back.append(failure)
        args.report(failure)
    return engine


def _mismatched(args: argparse.Namespace) -> str:
    """The draft that is seldom accepted. Raises LabError: there is none for this target."""
    if args.target and not args.mismatched:
        raise LabError("the mismatched draft is the embedded target's: name a --mismatched too")
    return args.mismatched or "mismatched"


def _ladder(args: argparse.Namespace) -> Result:
    result = run_ladder(_engine(args), args.max_tokens, args.repeats, args.report)
    return result, format_ladder(result)


def _kv(args: argparse.Namespace) -> Result:
    if args.text:
        texts = [(path.stem, read_text(path)) for path in args.text]
    elif args.target:
        raise LabError("the default text is held out from the embedded pair's training only: name a --text too")
    else:
        texts = [(f"held-out prompt {i}", prompt) for i, prompt in enumerate(held_out_prompts(), 1)]
    result = run_kv(_engine(args, drafting=False), texts, args.report)
    return result, format_kv(result)


def _ab(args: argparse.Namespace) -> Result:
    prompts = held_out_prompts()
    if args.prompts:
        prompts = [line for line in read_text(args.prompts).split("\n") if line.strip()]
    a, b = parse_config(args.a), parse_config(args.b)
    sampling = read_settings(SamplingParams, args)
    engine = _engine(args, drafting="draft" in (a.speculative, b.speculative))
    result = run_ab(engine, a, b, prompts, sampling, repeats=args.repeats, report=args.report)
    return result, format_ab(result)


def _serve(args: argparse.Namespace) -> Result:
    # Imported here: it needs a newer transformers than the other benches.
    from lab.bench.serving import format_serve, run_serve

    result = run_serve(_engine(args), args.requests, args.seed, args.repeats, args.report)
    return result, format_serve(result)


def _window(args: argparse.Namespace) -> Result:
    worse, engine = _mismatched(args), _engine(args)
    mismatched = load_engine(args.target, worse, device=args.device, dtype=args.dtype)
    result = run_window(engine, mismatched, args.max_tokens, args.repeats, args.report)
    return result, format_window(result)


def _roofline(args: argparse.Namespace) -> Result:
    result = run_roofline(_engine(args, drafting=False), args.max_tokens, args.repeats, args.report)
    return result, format_roofline(result)


def _logprobs(args: argparse.Namespace) -> Result:
    SamplingParams(logprobs=args.logprobs)  # refuses too many
    result = run_logprobs(_engine(args), args.logprobs, args.max_tokens, args.repeats, args.report)
    return result, format_logprobs(result)


def _claims(args: argparse.Namespace) -> Result:
    drafts: dict[str, str] = {}

    @functools.cache
    def load(pair: str) -> Engine:
        if pair == "matched":
            engine = _engine(args)
        else:
            engine = load_engine(args.target, _mismatched(args), device=args.device, dtype=args.dtype)
        drafts[pair] = engine.draft.name
        return engine

    engine = load("matched")  # else what is wrong with it would be reported once for every claim
    result = run_claims(load, args.claim or list(CLAIMS), args.report, small=args.small)
    return {"target": engine.target.name, "drafts": drafts, "dtype": engine.dtype, **result}, format_claims(result)


def _llama(args: argparse.Namespace) -> Result:
    result = run_llama(_engine(args, drafting=False), args.max_tokens, args.repeats, args.report)
    return result, format_llama(result)


def _vllm(args: argparse.Namespace) -> Result:
    # Imported here: it needs httpx, which no other bench does.
    from lab.bench.vllm_bench import format_vllm, run_vllm
    from lab.vllm.client import Server

    server = Server(args.attach, os.environ.get("VLLM_API_KEY"))
    result = run_vllm(_engine(args), server, args.max_tokens, args.report)
    return result, format_vllm(result)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
