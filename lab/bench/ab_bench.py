"""Quality beside speed of two settings of the engine, A and B, over the same prompts.

Quality: how far greedy outputs agree, and how likely A and B find the texts that each of them wrote (teacher forcing).
A setting finds its own text likelier than another's, so each reads both, and comparing B with A gives the inverse of
comparing A with B. With ``enable_prefix_caching``, every decoding of a prompt but the first finds its prefix cached.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import torch

from lab.bench.kv_bench import decode_ready
from lab.config import EngineConfig, SamplingParams, parse_config
from lab.engine.engine import Engine
from lab.errors import ConfigError, LabError
from lab.measure.difference import common_length
from lab.measure.interval import METHOD, Interval, ratio_interval, share_interval
from lab.measure.measuring import shuffled
from lab.measure.score import divergence, log_probabilities, surprise
from lab.measure.workload import held_out_prompts, read_text, refuse_cut
from lab.trace.run import acceptance_stats

TIMES = ("ttft_ms", "itl_p50_ms", "tokens_per_second")
Sample = dict[str, Any]
"""Both settings on one prompt. ``a``, ``b``: ``TIMES``, medians over the repeats; ``rounds``, ``proposed`` and
``accepted`` of all repeats; and ``surprise``: -log p in nats, summed over the ``tokens`` of both outputs at temperature
1. ``kl``: KL(A || B) in nats, summed over them. ``exact_match_length``: tokens until the greedy outputs first differ;
``identical``: they never do."""


def read_ab(args: argparse.Namespace) -> dict[str, object]:
    """The settings and the prompts. Raises LabError."""
    prompts = held_out_prompts()
    if args.prompts:
        prompts = [line for line in read_text(args.prompts).split("\n") if line.strip()]
    configs = {"a": parse_config(args.a), "b": parse_config(args.b)}
    if any(config.speculative == "draft" for config in configs.values()) and args.target and not args.draft:
        raise LabError("speculation with a draft takes one: name a --draft too")
    sampling = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature)
    return {"configs": configs, "prompts": prompts, "sampling": sampling, "repeats": args.repeats}


def run_ab(
    engine: Engine,
    configs: Mapping[str, EngineConfig],
    prompts: list[str],
    sampling: SamplingParams,
    *,
    repeats: int,
    report: Callable[[str], None],
) -> dict[str, object]:
    """Measure "a" and "b" of ``configs`` and compare them (``summarise``). Repeat i is drawn with seed i, to the full
    length. Raises ConfigError: nothing to measure, or a setting that this engine cannot have; LabError: more tokens
    than the context leaves, a run failed, or part of its setting was given up."""
    if sampling.max_tokens < 2 or repeats < 1 or not prompts:
        raise ConfigError("comparing takes at least a prompt, a repeat and two tokens: one to wait for, one to time.")
    refuse_cut(engine, prompts, sampling.max_tokens)
    sampling = replace(sampling, ignore_eos=True, seed=0, stop=(), stop_token_ids=())
    for prompt, config in product(prompts, configs.values()):  # before the first run: they may take an hour
        engine.prepare(prompt, config, sampling)
    for config in configs.values():  # to warm up; not counted
        decode_ready(engine, prompts[0], config, sampling)
    samples, orders = [], shuffled(configs, repeats * len(prompts))
    for number, prompt in enumerate(prompts, 1):
        samples.append(measure_sample(engine, configs, prompt, sampling, repeats, orders))
        report(f"  prompt {number} of {len(prompts)} done")
    return {
        **{name: asdict(config) for name, config in configs.items()},
        "prompts": len(prompts),
        "temperature": sampling.temperature,
        "intervals": METHOD,
        **summarise(samples),
        "samples": samples,
    }


def measure_sample(
    engine: Engine,
    configs: Mapping[str, EngineConfig],
    prompt: str,
    sampling: SamplingParams,
    repeats: int,
    orders: Iterator[list[str]],
) -> Sample:
    """Both settings on one prompt, taking turns in the next of ``orders``."""
    runs = {name: [] for name in configs}
    for seed in range(repeats):
        for name in next(orders):
            runs[name].append(decode_ready(engine, prompt, configs[name], replace(sampling, seed=seed)))
    outputs, prompt_ids = [some[0].token_ids for some in runs.values()], runs["a"][0].prompt_token_ids
    greedy = outputs
    if not sampling.greedy:
        once = replace(sampling, temperature=0)
        greedy = [decode_ready(engine, prompt, config, once).token_ids for config in configs.values()]
    sample: Sample = {"exact_match_length": common_length(*greedy), "identical": greedy[0] == greedy[1]}
    sample |= {"tokens": sum(map(len, outputs)), "kl": 0.0}
    for name, some in runs.items():
        medians = {time: statistics.median(getattr(run.metrics, time) for run in some) for time in TIMES}
        sample[name] = medians | vars(acceptance_stats(some)) | {"surprise": 0.0}
    for output in outputs:
        log_p = {
            name: torch.cat(list(log_probabilities(engine, prompt_ids + output, config, first=len(prompt_ids))))
            for name, config in configs.items()
        }
        sample["kl"] += divergence(*log_p.values()).sum().item()
        for name, own in log_p.items():
            sample[name]["surprise"] += surprise(own, torch.tensor(output, device=own.device)).sum().item()
    return sample


def summarise(samples: list[Sample]) -> dict[str, object]:
    """Means over prompts, each with its interval: of each metric under ``a`` and ``b``, and B / A (``ratio``). Figures
    of speculation are over the draft tokens of all prompts together, None without one."""

    def column(name: str, side: str = "") -> list[float]:
        return [(sample[side] if side else sample)[name] for sample in samples]

    def shown(interval: Interval | None) -> dict[str, float | None] | None:
        return interval and asdict(interval)

    metrics, tokens = {}, column("tokens")
    for name in TIMES:
        a, b = column(name, "a"), column(name, "b")
        metrics[name] = {"a": ratio_interval(a), "b": ratio_interval(b), "ratio": ratio_interval(b, a)}
    for name, below, plus in (("draft_acceptance_rate", "proposed", 0), ("mean_acceptance_length", "rounds", 1)):
        metrics[name] = {
            side: ratio_interval(column("accepted", side), column(below, side)).map(
                lambda value, plus=plus: plus + value
            )
            if any(column("rounds", side))
            else None
            for side in "ab"
        }
    surprises = {side: column("surprise", side) for side in "ab"}
    surprises["ratio"] = [b - a for a, b in zip(*surprises.values(), strict=True)]
    metrics["perplexity"] = {side: ratio_interval(sums, tokens).map(math.exp) for side, sums in surprises.items()}
    return {
        "metrics": {name: {side: shown(one) for side, one in sides.items()} for name, sides in metrics.items()},
        "exact_match_length": shown(ratio_interval(column("exact_match_length"))),
        "identical_outputs": shown(share_interval(sum(column("identical")), len(samples))),
        "kl": shown(ratio_interval(column("kl"), tokens)),
    }
