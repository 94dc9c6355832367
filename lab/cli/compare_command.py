"""``python -m lab compare``: settings in turn on one prompt."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from lab.cli.arguments import INTERRUPTED, read_settings
from lab.cli.common import context_full, idle_draft, interruptible, is_cut, load, read_prompt
from lab.cli.json_results import compare_result, fell_back
from lab.config import SamplingParams, parse_configs
from lab.engine.failures import explain
from lab.errors import ConfigError, LabError, PromptError
from lab.measure.comparison import Summary, compare, refuse, summarise
from lab.measure.difference import OTHER_DRAWS, draws, first_differences
from lab.settings import unused_settings
from lab.trace.run import Run
from lab.util.messages import format_rate
from lab.util.stdio import print_notes


def do(options: Namespace) -> int:
    configs = parse_configs(options.settings)
    sampling = read_settings(SamplingParams, options)
    refuse(configs, sampling, options.repeats)  # before models are loaded
    print_notes(f"{name}: {note}" for name, config in configs.items() for note in unused_settings(config, sampling))
    print_notes(idle_draft(options, configs.values()))
    prompt, engine = read_prompt(options), load(options, configs.values())
    runs: dict[str, list[Run]] = {name: [] for name in configs}
    failure = None
    with interruptible() as cancelled:
        turns = compare(engine, prompt, configs, sampling, options.repeats, cancelled=cancelled)
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
        for name, found in summarise(runs).items():
            rate = found.tokens_per_second
            accepted = "" if found.acceptance is None else f"{found.acceptance:.0%}"
            faster = "x1.00" if name == reference else _faster(found)
            quartiles = f"{format_rate(rate.lower)} to {format_rate(rate.upper)}"
            print(f"{format_rate(rate.median):>9}{quartiles:>16}{faster:>16}{accepted:>10}  {name}")
        for (one, other), found in (partings or {}).items():
            print(f"{one} and {other} write the same {found.place} token{'s' * (found.place != 1)}, then differ.")
        if partings == {}:
            print("All wrote the same.")
    if not sampling.greedy and any(draws(configs[one]) != draws(configs[other]) for one, other in partings or ()):
        print_notes([OTHER_DRAWS])
    print_notes(fell_back(run for some in runs.values() for run in some))
    if cut := next((run for some in runs.values() for run in some if is_cut(run)), None):
        asked, has = cut.sampling.max_tokens, len(cut.token_ids)
        print_notes([f"Each run has {has:,} of the {asked:,} tokens asked for: {context_full(engine.context_length)}."])
    if failure:
        print_notes([failure])
        return 1
    if cancelled.is_set():
        print_notes([f"Interrupted{'' if whole else ': not every setting has had a run'}."])
        return INTERRUPTED
    return 0


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
