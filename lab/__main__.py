"""The lab without a page: ``python -m lab run "Once upon a time" --speculative draft``."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it quietly while it is still importing

from transformers.utils import logging as transformers_logging

from lab import ConfigError, EngineConfig, LabError, PromptError, Run, SamplingParams, load_engine
from lab.answers import compare_answer, fell_back, fit_answer
from lab.bench.compare import Summary, compare, refuse, summarise
from lab.bench.difference import first_differences
from lab.decode.engine import Engine
from lab.kv.storage import FORMATS
from lab.memory.capacity import GPU_KEYS, WEIGHT_BITS, Deployment, device_bytes
from lab.memory.lengths import Lengths
from lab.memory.models import Model, find, known
from lab.memory.notice import notice
from lab.options import (
    DEFAULT,
    INTERRUPTED,
    READ_ENOUGH,
    Parser,
    add_pair,
    add_settings,
    idle,
    parse_configs,
    print_utf8,
    read_settings,
    typed,
)
from lab.pair.loading import refuse_absent
from lab.trace.events import Committed, Finished

OTHER_DRAWS = (
    "Above temperature 0, speculation uses the seed's draws differently: the same seed gives other tokens than plain "
    "decoding, or other guesses, do. They are drawn from the same distribution, so this is no difference in quality."
)


class _Prompted(Parser):
    """Explains a missing prompt: it may be one that argparse took for an option."""

    def error(self, message: str) -> NoReturn:
        if re.match("unrecognized arguments: -[^-]|the following arguments are required: prompt", message):
            message += ". A text that begins with a dash comes after all options and a lone --: --max-tokens 8 -- -x"
        super().error(message)


def commands() -> Parser:
    """The parser of all commands; each sets what is to be done (``do``)."""
    parser = _Prompted(prog="python -m lab", description="Decode without a page, or work out what fits.")
    added = parser.add_subparsers(dest="command", required=True)
    _add_run(added)
    _add_compare(added)
    _add_fit(added)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns the exit status: 0, 1 (a run failed), 2 (an error that the user can fix), 130
    (interrupted) or 141 (the reader of the output has closed it)."""
    parser = commands()
    options = parser.parse_args(arguments)
    print_utf8()
    transformers_logging.set_verbosity_error()
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    try:
        status = options.do(options)
        if sys.stdout:  # None if whoever started this closed it
            sys.stdout.flush()  # here, where an error can be reported
        return status
    except LabError as error:
        print(f"{parser.prog} {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # of the output: an error in reading a file becomes a LabError there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # drops what is still to be flushed
        if isinstance(error, BrokenPipeError):
            return READ_ENOUGH
        print(f"{parser.prog} {options.command}: the output cannot be written: {error.strerror}.", file=sys.stderr)
        return 2


def _add_run(commands: Any) -> None:
    command = commands.add_parser("run", help="decode a prompt; the text goes to standard output as it is generated")
    command.set_defaults(do=_run)
    _add_prompt(command)
    shown = command.add_mutually_exclusive_group()
    shown.add_argument(
        "--json", action="store_true", help="print the run's file, to open in the page, instead of the text"
    )
    shown.add_argument("--metrics", action="store_true", help="print the run's figures as JSON, instead of the text")
    add_pair(command)
    add_settings(command, EngineConfig)
    add_settings(command, SamplingParams)


def _run(options: argparse.Namespace) -> int:
    config, sampling = read_settings(EngineConfig, options), read_settings(SamplingParams, options)
    _note([*idle(config, sampling), *_idle_draft(options, [config])])
    prompt, engine = _prompt(options), _engine(options)
    events = []
    with _interruptible() as cancelled:
        for event in engine.stream(prompt, config, sampling, cancelled=cancelled):
            events.append(event)
            if isinstance(event, Committed | Finished) and not (options.json or options.metrics):
                print(event.text, end="", flush=True)
    run = Run(events)
    shown = run.to_json() if options.json else json.dumps(asdict(run.metrics)) if options.metrics else ""
    print(shown, flush=True)  # before the summary, which is left out if the output fails
    _note(fell_back([run]))
    print(_summary(run, engine.context_length), file=sys.stderr)
    return {"error": 1, "cancelled": INTERRUPTED}.get(run.reason, 0)


def _summary(run: Run, context_length: int) -> str:
    """A run in one line."""
    if run.reason == "error":
        return f"The run failed: {run.finished.message}"
    metrics = run.metrics
    said = [f"{metrics.generated_tokens} token{'s' * (metrics.generated_tokens != 1)}"]
    if metrics.tokens_per_second is not None:
        said.append(f"{metrics.tokens_per_second:.0f} a second")
    if metrics.ttft_ms is not None:
        said.append(f"the first after {metrics.ttft_ms:.1f} ms")
    if metrics.draft_acceptance_rate is not None:
        said.append(f"{metrics.draft_acceptance_rate:.0%} of the guesses kept")
    full = f", for {_full(context_length)}" if _is_cut(run) else ""
    return f"{', '.join(said)}. Ended by: {run.reason}{full}. Seed: {run.sampling.seed}."


def _is_cut(run: Run) -> bool:
    """Whether the model's context was full before all requested tokens had come."""
    return run.reason == "length" and len(run.token_ids) < run.sampling.max_tokens


def _full(context_length: int) -> str:
    return f"the model's context of {context_length:,} tokens is full"


def _note(sentences: Iterable[str]) -> None:
    """Print what is worth knowing about an answer to standard error."""
    for sentence in sentences:
        print(sentence, file=sys.stderr)


def _idle_draft(options: argparse.Namespace, configs: Iterable[EngineConfig]) -> list[str]:
    """As ``idle``, for a draft that was named."""
    if options.draft is None or any(config.speculative == "draft" for config in configs):
        return []
    return ["draft does nothing without speculative=draft."]


def _add_compare(commands: Any) -> None:
    about = "All runs share a seed (default 0) and go on past an end of text, so that all are of one length."
    command = commands.add_parser(
        "compare", help="compare two to five settings on a prompt, in turn", description=about
    )
    command.set_defaults(do=_compare)
    _add_prompt(command)
    command.add_argument(
        "settings", nargs="+", help="each as kv_dtype=int8,paged=true; '' is the default settings. The others are "
        "compared with the first."
    )  # fmt: skip
    command.add_argument(
        "--repeats", type=int, default=3, metavar="N", help=f"runs of each, in changing order. {DEFAULT}"
    )
    command.add_argument("--json", action="store_true", help="print all figures as JSON, not a table")
    add_pair(command)
    add_settings(command, SamplingParams, without=("stop", "ignore_eos", "logprobs"))


def _compare(options: argparse.Namespace) -> int:
    configs = parse_configs(options.settings)
    options.seed = 0 if options.seed is None else options.seed
    sampling = read_settings(SamplingParams, options)
    refuse(configs, sampling, options.repeats)  # before models are loaded
    _note(f"{name}: {said}" for name, config in configs.items() for said in idle(config, sampling))
    _note(_idle_draft(options, configs.values()))
    prompt, engine = _prompt(options), _engine(options)
    runs: dict[str, list[Run]] = {name: [] for name in configs}
    failure = None
    with _interruptible() as cancelled:
        turns = compare(engine, prompt, configs, sampling, options.repeats, cancelled=cancelled)
        try:
            for done, (turn, run) in enumerate(turns, 1):
                if turn.repeat:
                    runs[turn.name].append(run)
                _progress(f"{done} of {len(configs) * (options.repeats + 1)} runs are done")
        except (ConfigError, PromptError):  # before the first run
            raise
        except LabError as error:
            failure = str(error)
    _progress("")
    whole = all(runs.values())
    partings = None
    try:
        if whole and not failure:
            partings = first_differences(engine, {name: some[0] for name, some in runs.items()})
    except KeyboardInterrupt:  # the figures are there
        cancelled.set()
    if options.json:
        print(json.dumps(compare_answer(runs, partings)))
    else:
        print(f"{'tokens/s':>9}{'quartiles':>16}{'speed':>16}{'kept':>7}  setting")
        reference = next(iter(runs))
        for name, found in summarise(runs).items():
            rate = found.tokens_per_second
            kept = "" if found.acceptance is None else f"{found.acceptance:.0%}"
            speed = "x1.00" if name == reference else _faster(found)
            quartiles = f"{rate.lower:.0f} to {rate.upper:.0f}"
            print(f"{rate.median:9.0f}{quartiles:>16}{speed:>16}{kept:>7}  {name}")
        for (one, other), found in (partings or {}).items():
            print(f"{one} and {other} write the same {found.place} token{'s' * (found.place != 1)}, then differ.")
        if partings == {}:
            print("All wrote the same.")
    if not sampling.greedy and any(_draws(configs[one]) != _draws(configs[other]) for one, other in partings or ()):
        _note([OTHER_DRAWS])
    _note(fell_back(run for some in runs.values() for run in some))
    if cut := next((run for some in runs.values() for run in some if _is_cut(run)), None):
        asked, has = cut.sampling.max_tokens, len(cut.token_ids)
        _note([f"Each run has {has:,} of the {asked:,} tokens asked for: {_full(engine.context_length)}."])
    if failure:
        _note([failure])
        return 1
    if cancelled.is_set():
        print(f"Interrupted{'' if whole else ': not every setting has had a run'}.", file=sys.stderr)
        return INTERRUPTED
    return 0


def _draws(config: EngineConfig) -> tuple[str | int, ...]:
    """What determines which of the seed's draws guesses use. None do in plain decoding, nor where the target guesses
    its own next token.
    """
    if config.speculative in ("off", "synthetic"):
        return ()
    return config.speculative, config.num_speculative_tokens, config.adaptive_window


def _faster(found: Summary) -> str:
    """The speed-up, and how sure it is."""
    if found.speedup is None:
        return ""
    if found.one_run:
        return f"x{found.speedup.median:.2f}, one run"
    return f"x{found.speedup.median:.2f}" if found.clear else "unclear"


def _progress(text: str) -> None:
    """Print in place of the previous progress, if standard error is a terminal."""
    if sys.stderr and sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _add_fit(commands: Any) -> None:
    command = commands.add_parser("fit", help="what a model and its cache take on a GPU: arithmetic, nothing is loaded")
    command.set_defaults(do=_fit)
    command.add_argument(
        "model",
        type=os.path.expanduser,
        help=f"{', '.join(known())}; a folder with a config.json, or a hub id",
    )
    device = command.add_mutually_exclusive_group()
    device.add_argument(
        "--gpu", choices=GPU_KEYS, default="h100-80-gb", metavar="GPU", help=f"{', '.join(GPU_KEYS)}. {DEFAULT}"
    )
    device.add_argument("--memory", type=float, metavar="GIB", help="that of another device. Default: the GPU's.")
    about = f"what a layer's parameter is stored as; the embedding table and the head have 16 bits or more. {DEFAULT}"
    command.add_argument("--weights", choices=WEIGHT_BITS, default="bfloat16", help=about)
    about = f"what a cached number is stored as; auto is bfloat16, or float32 with such weights. {DEFAULT}"
    command.add_argument("--kv-dtype", choices=FORMATS, default="auto", help=about)
    about = f"share of the memory that is kept for activations and the driver. {DEFAULT}"
    command.add_argument("--set-aside", type=float, default=0.1, metavar="N", help=about)
    about = f"mean length of a sequence in tokens. {DEFAULT}"
    command.add_argument("--mean", type=float, default=500, metavar="N", help=about)
    about = f"tokens of the longest sequence. {DEFAULT}"
    command.add_argument("--longest", type=int, default=4096, metavar="N", help=about)
    about = f"tokens of a block of the cache. {DEFAULT}"
    command.add_argument("--block-size", type=int, default=16, metavar="N", help=about)
    command.add_argument("--json", action="store_true", help="print all figures as JSON, not a table")


def _fit(options: argparse.Namespace) -> int:
    model = _model(options.model)
    deployment = Deployment(
        shape=model.shape,
        parameters=model.parameters,
        weights=options.weights,
        kv_dtype=options.kv_dtype,
        memory=device_bytes(options.gpu, options.memory),
        set_aside=options.set_aside,
        lengths=Lengths(options.mean, options.longest),
        block_size=options.block_size,
    )
    answer = fit_answer(model, deployment)
    if options.json:
        print(json.dumps(answer))
        return 0
    for name in ("memory", "weight", "cache", "token"):
        print(f"{name:>11} {answer[f'{name}_bytes']:>20,} B")
    for policy, count in answer["sequences"].items():
        print(f"{policy:>11} {count:>20,} sequences at once")
    lengths = deployment.lengths
    print(
        f"A sequence has {lengths.mean:,.10g} token{'s' * (lengths.mean != 1)} on average (--mean) and at most "
        f"{lengths.longest:,} (--longest), for which contiguous allocation reserves room."
    )
    if said := notice(model, deployment, lambda count: f"{count:,} B"):
        _note([said])
    return 0


def _model(name: str) -> Model:
    if name in known():
        return known()[name]
    refuse_absent(name)
    return find(Path(name) if os.path.isdir(name) else name)


def _add_prompt(command: argparse.ArgumentParser) -> None:
    about = "the text to go on from; - reads it from standard input. One that begins with a dash comes last, after --"
    command.add_argument("prompt", type=typed, help=about)


def _prompt(options: argparse.Namespace) -> str:
    """The prompt, refused here if it is empty: an engine would only say so once its models are loaded."""
    prompt = _read() if options.prompt == "-" else options.prompt
    if not prompt:
        raise PromptError("The prompt is empty. Write at least one word to go on from.")
    return prompt


def _read() -> str:
    """All of standard input."""
    try:
        if sys.stdin is None:
            raise LabError("standard input is closed: there is no prompt to read.")
        return sys.stdin.buffer.read().decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except OSError as error:
        raise LabError(f"standard input cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise LabError(f"standard input is not text in UTF-8: byte {error.start} begins no character.") from None


def _engine(options: argparse.Namespace) -> Engine:
    return load_engine(options.target, options.draft, device=options.device, dtype=options.dtype)


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Let Ctrl-C set the event, so that a run ends after its current step and is whole; a second one interrupts."""
    cancelled = threading.Event()
    before = signal.getsignal(signal.SIGINT)

    def interrupt(*_: object) -> None:
        cancelled.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield cancelled
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
