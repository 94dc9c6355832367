"""The commands of ``python -m lab``: ``run`` decodes one prompt, ``chat`` answers messages, ``compare`` decodes with
several settings in turn, and ``fit`` says what a model and its cache take on a GPU."""

import json
import os
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from lab import load_engine
from lab.cli.arguments import INTERRUPTED, read_settings
from lab.cli.json_results import compare_result, fell_back, fit_result
from lab.config import EngineConfig, SamplingParams, parse_configs, parse_token_ids
from lab.engine.engine import Engine, Prompted
from lab.engine.failures import explain
from lab.errors import ConfigError, LabError, PromptError
from lab.measure import comparison
from lab.measure.difference import OTHER_DRAWS, draws, first_differences
from lab.memory.capacity import Deployment, Lengths
from lab.memory.catalogue import MODELS, device_bytes
from lab.memory.model_memory import ModelInfo, deployment_notices, find_model, kept_by_layers, known_models
from lab.models.chat_template import Chat, answer
from lab.models.loader import refuse_absent
from lab.models.state_head import HEADS
from lab.settings import unused_settings
from lab.trace.events import Committed, Finished
from lab.trace.run import Run
from lab.util.messages import counted, format_rate
from lab.util.stdio import print_notes


def run(options: Namespace) -> int:
    config, sampling = read_settings(EngineConfig, options), read_settings(SamplingParams, options)
    print_notes([*unused_settings(config, sampling), *_idle_draft(options, [config])])
    prompt, engine = _read_prompt(options), _load(options, [config])
    done = _written(engine, prompt, config, sampling, show=not (options.json or options.metrics))
    shown = done.to_json() if options.json else json.dumps(asdict(done.metrics)) if options.metrics else ""
    print(shown, flush=True)  # before the summary, which is left out if the output fails
    print_notes([*done.started.notes, *fell_back([done]), _summary(done, engine.context_length)])
    return {"error": 1, "cancelled": INTERRUPTED}.get(done.reason, 0)


def _written(
    engine: Engine, prompt: Prompted, config: EngineConfig, sampling: SamplingParams, *, show: bool = True
) -> Run:
    """Decode to the end or to Ctrl-C; ``show``: print the text as it comes."""
    events = []
    with _interruptible() as cancelled:
        for event in engine.stream(prompt, config, sampling, cancelled=cancelled):
            events.append(event)
            if isinstance(event, Committed | Finished) and show:
                print(event.text, end="", flush=True)
    return Run(events)


def chat(options: Namespace) -> int:
    config, sampling = read_settings(EngineConfig, options), read_settings(SamplingParams, options)
    print_notes([*unused_settings(config, sampling), *_idle_draft(options, [config])])
    engine = _load(options, [config])
    messages = [{"role": "system", "content": options.system}] if options.system else []
    status = 0
    for text in _messages():
        asked = Chat([*messages, {"role": "user", "content": text}], options.thinking)
        done = _written(engine, asked, config, sampling)
        print(flush=True)
        metrics, prompt = done.metrics, len(done.started.prompt_token_ids)
        found = f"Found in the prefix cache: {metrics.cached_prompt_tokens:,} of {counted(prompt, 'prompt token')}."
        print_notes([*done.started.notes, *fell_back([done]), found, _summary(done, engine.context_length)])
        status = {"error": 1, "cancelled": INTERRUPTED}.get(done.reason, 0)
        if done.reason != "error":
            messages = [*asked.messages, answer(done)]
    return status


def _messages() -> Iterator[str]:
    """Lines that a person types; or all of standard input, if it is no terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _read()
        return
    with suppress(EOFError):
        while True:
            if text := input("> ").strip():
                yield text


def _summary(run: Run, context_length: int) -> str:
    if run.reason == "error":
        return f"The run failed: {run.finished.message}"
    metrics = run.metrics
    parts = [counted(metrics.generated_tokens, "token")]
    if metrics.tokens_per_second is not None:
        parts.append(f"{format_rate(metrics.tokens_per_second)} per second")
    if metrics.ttft_ms is not None:
        parts.append(f"the first after {metrics.ttft_ms:.1f} ms")
    if metrics.draft_acceptance_rate is not None:
        parts.append(f"acceptance rate {metrics.draft_acceptance_rate:.0%}")
    if metrics.mean_total_variation is not None:
        parts.append(f"lossy: {metrics.mean_total_variation:.1%} from the target's distribution (total variation)")
    full = f", for {_context_full(context_length)}" if _is_cut(run) else ""
    return f"{', '.join(parts)}. Ended by: {run.reason}{full}. Seed: {run.sampling.seed}."


def compare(options: Namespace) -> int:
    configs = parse_configs(options.settings)
    sampling = read_settings(SamplingParams, options)
    comparison.refuse(configs, sampling, options.repeats)  # before models are loaded
    print_notes(f"{name}: {note}" for name, config in configs.items() for note in unused_settings(config, sampling))
    print_notes(_idle_draft(options, configs.values()))
    prompt, engine = _read_prompt(options), _load(options, configs.values())
    runs: dict[str, list[Run]] = {name: [] for name in configs}
    failure = None
    with _interruptible() as cancelled:
        turns = comparison.compare(engine, prompt, configs, sampling, options.repeats, cancelled=cancelled)
        try:
            for done, (turn, run) in enumerate(turns, 1):
                if turn.repeat:
                    runs[turn.name].append(run)
                _progress(f"{done} of {len(configs) * (options.repeats + 1)} runs done")
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
    except Exception as error:  # still there: it takes memory beside the caches, which may fill a GPU
        failure = f"Whether all wrote the same could not be found out: {explain(error)}"
    if options.json:
        print(json.dumps(compare_result(runs, partings)))
    else:
        print(f"{'tokens/s':>9}{'quartiles':>16}{'speed':>16}{'accepted':>10}  setting")
        reference = next(iter(runs))
        for name, found in comparison.summarise(runs).items():
            rate = found.tokens_per_second
            accepted = "" if found.acceptance is None else f"{found.acceptance:.0%}"
            faster = "x1.00" if name == reference else _faster(found)
            quartiles = f"{format_rate(rate.lower)} to {format_rate(rate.upper)}"
            print(f"{format_rate(rate.median):>9}{quartiles:>16}{faster:>16}{accepted:>10}  {name}")
        for (one, other), found in (partings or {}).items():
            print(f"{one} and {other} write the same {counted(found.place, 'token')}, then differ.")
        if partings == {}:
            print("All wrote the same.")
    if not sampling.greedy and any(draws(configs[one]) != draws(configs[other]) for one, other in partings or ()):
        print_notes([OTHER_DRAWS])
    print_notes(dict.fromkeys(note for some in runs.values() for run in some for note in run.started.notes))
    print_notes(fell_back(run for some in runs.values() for run in some))
    if cut := next((run for some in runs.values() for run in some if _is_cut(run)), None):
        asked, has = cut.sampling.max_tokens, len(cut.token_ids)
        print_notes(
            [f"Each run has {has:,} of the {asked:,} tokens asked for: {_context_full(engine.context_length)}."]
        )
    if failure:
        print_notes([failure])
        return 1
    if cancelled.is_set():
        print_notes([f"Interrupted{'' if whole else ': not every setting has had a run'}."])
        return INTERRUPTED
    return 0


def _faster(found: comparison.Summary) -> str:
    if found.speedup is None:
        return ""
    if found.one_run:
        return f"x{found.speedup.median:.2f}, one run"
    return f"x{found.speedup.median:.2f}" if found.clear else "unclear"


def _progress(text: str) -> None:
    """Print in place of the previous progress, if standard error is a terminal."""
    if sys.stderr and sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def fit(options: Namespace) -> int:
    model = _model(options.model)
    deployment = Deployment(
        shape=model.shape,
        parameters=model.parameters,
        weights=options.weights,
        kv_dtype=options.kv_dtype,
        kv_cache_dtype_skip_layers=options.kv_cache_dtype_skip_layers,
        memory=device_bytes(options.gpu, options.memory),
        set_aside=options.set_aside,
        lengths=Lengths(options.mean, options.longest),
        block_size=options.block_size,
        state_bytes=model.state_bytes,
    )
    answer = fit_result(model, deployment)
    if options.json:
        print(json.dumps(answer))
        return 0
    for name in ("memory", "weight", "cache", "token"):
        print(f"{name:>11} {answer[f'{name}_bytes']:>20,} B")
    for policy, count in answer["sequences"].items():
        print(f"{policy:>11} {count:>20,} {'sequence' if count == 1 else 'sequences'} at once")
    lengths = deployment.lengths
    print(
        f"A sequence has {lengths.mean:,.10g} token{'s' * (lengths.mean != 1)} on average (--mean) and at most "
        f"{lengths.longest:,} (--longest), for which contiguous allocation reserves room."
    )
    size = "{:,} B".format
    print_notes([*kept_by_layers(model, size), *deployment_notices(model, deployment, size)])
    return 0


def _model(name: str) -> ModelInfo:
    if name in MODELS:
        return known_models()[name]
    refuse_absent(name)
    return find_model(Path(name) if os.path.isdir(name) else name)


def _read_prompt(options: Namespace) -> str | list[int]:
    """The prompt, refused here if it is empty: an engine would only say so once its models are loaded."""
    prompt = _read() if options.prompt == "-" else options.prompt
    if not prompt:
        raise PromptError("The prompt is empty. Enter some text for the model to continue.")
    return parse_token_ids(prompt) if options.token_ids else prompt


def _read() -> str:
    try:
        if sys.stdin is None:
            raise LabError("standard input is closed: there is no prompt to read.")
        return sys.stdin.buffer.read().decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except OSError as error:
        raise LabError(f"standard input cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise LabError(f"standard input is not text in UTF-8: byte {error.start} begins no character.") from None


def _load(options: Namespace, configs: Iterable[EngineConfig]) -> Engine:
    asked = {config.speculative for config in configs}
    if options.target and not options.draft and "draft" in asked:
        raise ConfigError("speculative=draft takes a draft model: name a --draft too.")
    for kind, words in HEADS.items():
        if options.target and not options.head and kind in asked:
            raise ConfigError(f"speculative={kind} takes {words}: name a --head too.")
    return load_engine(options.target, options.draft, head=options.head, device=options.device, dtype=options.dtype)


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


def _idle_draft(options: Namespace, configs: Iterable[EngineConfig]) -> list[str]:
    if options.draft is None or any(config.speculative == "draft" for config in configs):
        return []
    return ["draft does nothing without speculative=draft."]


def _is_cut(run: Run) -> bool:
    """True if the model's context was full before all requested tokens had come."""
    return run.reason == "length" and len(run.token_ids) < run.sampling.max_tokens


def _context_full(context_length: int) -> str:
    return f"the model's context of {context_length:,} tokens is full"
