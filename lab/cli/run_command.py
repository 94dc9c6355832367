"""``python -m lab run``: decode one prompt."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import asdict

from lab.cli.arguments import INTERRUPTED, read_settings
from lab.cli.common import context_full, idle_draft, interruptible, is_cut, load, read_prompt
from lab.cli.json_results import fell_back
from lab.config import EngineConfig, SamplingParams
from lab.settings import unused_settings
from lab.trace.events import Committed, Finished
from lab.trace.run import Run
from lab.util.messages import format_rate
from lab.util.stdio import print_notes


def do(options: Namespace) -> int:
    config, sampling = read_settings(EngineConfig, options), read_settings(SamplingParams, options)
    print_notes([*unused_settings(config, sampling), *idle_draft(options, [config])])
    prompt, engine = read_prompt(options), load(options, [config])
    events = []
    with interruptible() as cancelled:
        for event in engine.stream(prompt, config, sampling, cancelled=cancelled):
            events.append(event)
            if isinstance(event, Committed | Finished) and not (options.json or options.metrics):
                print(event.text, end="", flush=True)
    run = Run(events)
    shown = run.to_json() if options.json else json.dumps(asdict(run.metrics)) if options.metrics else ""
    print(shown, flush=True)  # before the summary, which is left out if the output fails
    print_notes([*fell_back([run]), _summary(run, engine.context_length)])
    return {"error": 1, "cancelled": INTERRUPTED}.get(run.reason, 0)


def _summary(run: Run, context_length: int) -> str:
    """A run in one line."""
    if run.reason == "error":
        return f"The run failed: {run.finished.message}"
    metrics = run.metrics
    parts = [f"{metrics.generated_tokens} token{'s' * (metrics.generated_tokens != 1)}"]
    if metrics.tokens_per_second is not None:
        parts.append(f"{format_rate(metrics.tokens_per_second)} per second")
    if metrics.ttft_ms is not None:
        parts.append(f"the first after {metrics.ttft_ms:.1f} ms")
    if metrics.draft_acceptance_rate is not None:
        parts.append(f"acceptance rate {metrics.draft_acceptance_rate:.0%}")
    full = f", for {context_full(context_length)}" if is_cut(run) else ""
    return f"{', '.join(parts)}. Ended by: {run.reason}{full}. Seed: {run.sampling.seed}."
