"""Quality. ``ab``: beside speed, of two settings of the engine, A and B, over the same prompts. ``kv``: of each KV
format, on texts cut into windows side by side, and the speed of decoding with it.

A and B decode every prompt, one right after the other and in alternating order. Quality: how far greedy outputs agree,
and how likely A and B find the texts that each of them wrote (teacher forcing). A setting finds its own text likelier
than another's, so each reads both, and comparing B with A gives the inverse of comparing A with B. Every output has
the same length. With ``enable_prefix_caching``, every decoding of a prompt but the first finds its prefix cached.
"""

import argparse
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import torch

from lab.cli.arguments import read_settings
from lab.config import EngineConfig, SamplingParams, parse_config
from lab.engine.engine import Engine
from lab.errors import ConfigError, LabError
from lab.kv_cache.storage import FORMATS
from lab.measure.difference import common_length
from lab.measure.interval import METHOD, bootstrap, ratio_interval, share_interval
from lab.measure.measuring import decode, make_ready, take_turns
from lab.measure.score import divergence, kv_errors, log_probabilities, surprise
from lab.measure.workload import held_out_prompts, longest, read_text, refuse_cut
from lab.trace.run import AcceptanceStats, Run, acceptance_stats

TIMES = ("ttft_ms", "itl_p50_ms", "tokens_per_second")
"""The fields of ``SideMetrics`` that have a mean over prompts."""
SPECULATION: dict[str, Callable[..., Any]] = {
    "draft_acceptance_rate": lambda rounds, proposed, accepted: accepted / proposed,
    "mean_acceptance_length": lambda rounds, proposed, accepted: 1 + accepted / rounds,
}
"""Computed from sums over all prompts, as ``lab.trace.metrics`` defines them for one run."""


@dataclass(frozen=True)
class SideMetrics:
    """One setting on one prompt: times are medians over the repeats, draft tokens are those of all repeats."""

    ttft_ms: float
    itl_p50_ms: float
    tokens_per_second: float
    drafting: AcceptanceStats


@dataclass(frozen=True)
class Sample:
    """Both settings on one prompt.

    Attributes:
        exact_match_length: tokens until their greedy outputs first differ. identical: they never do.
        tokens: those of both outputs, A's and B's, on which both settings are scored at temperature 1.
        kl: KL(A || B) of the next-token distributions, in nats, summed over the tokens.
        a_surprise, b_surprise: -log p of the tokens, in nats, summed.
    """

    a: SideMetrics
    b: SideMetrics
    exact_match_length: int
    identical: bool
    tokens: int
    kl: float
    a_surprise: float
    b_surprise: float


def read_ab(args: argparse.Namespace) -> dict[str, object]:
    """The settings and the prompts. Raises LabError."""
    prompts = held_out_prompts()
    if args.prompts:
        prompts = [line for line in read_text(args.prompts).split("\n") if line.strip()]
    a, b = parse_config(args.a), parse_config(args.b)
    if "draft" in (a.speculative, b.speculative) and args.target and not args.draft:
        raise LabError("speculation with a draft takes one: name a --draft too")
    sampling = read_settings(SamplingParams, args)
    return {"a": a, "b": b, "prompts": prompts, "sampling": sampling, "repeats": args.repeats}


def run_ab(
    engine: Engine,
    a: EngineConfig,
    b: EngineConfig,
    prompts: list[str],
    sampling: SamplingParams,
    *,
    repeats: int,
    report: Callable[[str], None],
) -> dict[str, object]:
    """Measure A and B and compare them (``summarise``). Repeat i is drawn with seed i, to the full length. Raises
    ConfigError: nothing to measure, or a setting that this engine cannot have; LabError: more tokens than the context
    leaves, a run failed, or part of its setting was given up."""
    if sampling.max_tokens < 2 or repeats < 1 or not prompts:
        raise ConfigError("comparing takes at least a prompt, a repeat and two tokens: one to wait for, one to time.")
    refuse_cut(engine, prompts, sampling.max_tokens)
    sampling = replace(sampling, ignore_eos=True, seed=0, stop=(), stop_token_ids=())
    for prompt, config in product(prompts, (a, b)):  # before the first run: they may take an hour
        engine.prepare(prompt, config, sampling)
    for config in (a, b):  # to warm up; not counted
        _decode(engine, prompts[0], config, sampling)
    samples = []
    for number, prompt in enumerate(prompts):
        samples.append(measure_sample(engine, a, b, prompt, sampling, repeats, b_first=number % 2 == 1))
        report(f"  prompt {number + 1} of {len(prompts)} done")
    return {
        "a": asdict(a),
        "b": asdict(b),
        "prompts": len(prompts),
        **{name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p")},
        "intervals": METHOD,
        **summarise(samples),
        "samples": [asdict(sample) for sample in samples],
    }


def measure_sample(
    engine: Engine,
    a: EngineConfig,
    b: EngineConfig,
    prompt: str,
    sampling: SamplingParams,
    repeats: int,
    *,
    b_first: bool = False,
) -> Sample:
    """Both settings on one prompt, taking turns; ``b_first``: B has the first turn."""
    a_runs, b_runs = [], []
    for repeat in range(repeats):
        turns = [(a_runs, a), (b_runs, b)]
        for runs, config in reversed(turns) if (repeat % 2 == 1) != b_first else turns:
            runs.append(_decode(engine, prompt, config, replace(sampling, seed=repeat)))
    greedy = [a_runs[0].token_ids, b_runs[0].token_ids]
    if not sampling.greedy:
        greedy = [_decode(engine, prompt, config, replace(sampling, temperature=0)).token_ids for config in (a, b)]
    same = common_length(*greedy)

    prompt_ids, kl, a_surprise, b_surprise = a_runs[0].prompt_token_ids, 0.0, 0.0, 0.0
    outputs = a_runs[0].token_ids, b_runs[0].token_ids
    for output in outputs:
        log_a, log_b = (
            torch.cat(list(log_probabilities(engine, prompt_ids + output, config, first=len(prompt_ids))))
            for config in (a, b)
        )
        written = torch.tensor(output, device=log_a.device)
        kl += divergence(log_a, log_b).sum().item()
        a_surprise += surprise(log_a, written).sum().item()
        b_surprise += surprise(log_b, written).sum().item()
    return Sample(
        a=_side(a_runs),
        b=_side(b_runs),
        exact_match_length=same,
        identical=same == len(greedy[0]) == len(greedy[1]),
        tokens=sum(map(len, outputs)),
        kl=kl,
        a_surprise=a_surprise,
        b_surprise=b_surprise,
    )


def summarise(samples: list[Sample]) -> dict[str, object]:
    """Means over prompts, and ratios of those means, each with its interval: of each metric under ``a`` and ``b``, and
    B / A (``ratio``); figures of speculation are over all prompts together, None without draft tokens."""
    sides = [sample.a for sample in samples], [sample.b for sample in samples]
    metrics: dict[str, dict[str, object]] = {}
    for name in TIMES:
        a, b = ([getattr(one, name) for one in side] for side in sides)
        found = {"a": ratio_interval(a), "b": ratio_interval(b), "ratio": ratio_interval(b, a)}
        metrics[name] = {which: asdict(interval) for which, interval in found.items()}
    for name, figure in SPECULATION.items():
        metrics[name] = _of_speculation(figure, *([one.drafting for one in side] for side in sides))
    tokens = [sample.tokens for sample in samples]
    surprises = {
        "a": [sample.a_surprise for sample in samples],
        "b": [sample.b_surprise for sample in samples],
        "ratio": [sample.b_surprise - sample.a_surprise for sample in samples],
    }
    metrics["perplexity"] = {
        side: asdict(ratio_interval(sums, tokens).map(math.exp)) for side, sums in surprises.items()
    }
    return {
        "metrics": metrics,
        "exact_match_length": asdict(ratio_interval([sample.exact_match_length for sample in samples])),
        "identical_outputs": asdict(share_interval(sum(sample.identical for sample in samples), len(samples))),
        "kl": asdict(ratio_interval([sample.kl for sample in samples], tokens)),
    }


def _of_speculation(
    figure: Callable[..., Any], a: list[AcceptanceStats], b: list[AcceptanceStats]
) -> dict[str, object]:
    """``figure`` of each side's draft tokens, summed over prompts, and B / A."""
    columns = {
        which: [[one.rounds for one in side], [one.proposed for one in side], [one.accepted for one in side]]
        for which, side in (("a", a), ("b", b))
    }
    drafting = [which for which, (rounds, *_) in columns.items() if sum(rounds)]
    found = {which: asdict(bootstrap(columns[which], figure)) if which in drafting else None for which in "ab"}
    if len(drafting) < 2 or not found["a"]["value"]:
        return found | {"ratio": None}
    both = bootstrap([*columns["a"], *columns["b"]], lambda *sums: figure(*sums[3:]) / figure(*sums[:3]))
    return found | {"ratio": asdict(both)}


def _decode(engine: Engine, prompt: str, config: EngineConfig, sampling: SamplingParams) -> Run:
    make_ready(engine, config, longest(engine, [prompt]) + sampling.max_tokens)
    return decode(engine, prompt, config, sampling)


def _side(runs: list[Run]) -> SideMetrics:
    medians = {name: statistics.median(getattr(run.metrics, name) for run in runs) for name in TIMES}
    return SideMetrics(**medians, drafting=acceptance_stats(runs))


WINDOW = 1024
"""Tokens of a window, if the model's context is that long."""
TIMED = 64
"""Tokens that a format decodes in each timed run."""


def read_kv(args: argparse.Namespace) -> dict[str, object]:
    """The texts. Raises LabError."""
    if args.target and not args.text:
        raise LabError("the default text is held out from the embedded pair's training only: name a --text too")
    own = [(f"held-out prompt {i}", prompt) for i, prompt in enumerate(held_out_prompts(), 1)]
    return {"texts": [(path.stem, read_text(path)) for path in args.text or ()] or own, "repeats": args.repeats}


def run_kv(
    engine: Engine, texts: list[tuple[str, str]], report: Callable[[str], None], *, repeats: int
) -> dict[str, object]:
    """Measure every format on texts, each a title and the text itself. Raises LabError: a text of fewer than two
    tokens."""
    length = min(WINDOW, engine.context_length)
    described, windows = [], []
    for title, text in texts:
        ids = engine.tokenizer(text, verbose=False)["input_ids"]
        if len(ids) < 2:
            raise LabError(f"{title!r} has {len(ids)} tokens; two or more are needed, one to read and one to expect.")
        described.append({"title": title, "tokens": len(ids)})
        windows += [ids[first : first + length] for first in range(0, len(ids) - 1, length)]
    rows = kv_errors(engine, windows, report)
    prompt = engine.tokenizer.decode(windows[0][: length // 2])
    speeds = decode_speeds(engine, prompt, min(TIMED, length // 4), repeats, report)
    return {
        "texts": described,
        "windows": len(windows),
        "window_tokens": length,
        "scored_tokens": sum(len(ids) - 1 for ids in windows),
        "intervals": METHOD,
        "formats": [asdict(row) | {"speed": speeds[row.kv_dtype]} for row in rows],
    }


def decode_speeds(
    engine: Engine, prompt: str, tokens: int, repeats: int, report: Callable[[str], None]
) -> dict[str, dict[str, object]]:
    """Decoding in every format, in turns: tokens per second, and the ratio to those of "auto", each with its interval
    over the repeats. By format, under "default", what a run takes, and "reference", torch alone: a format that no
    kernel reads has torch's time under both."""
    sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    rows = {
        (form, kernels): lambda form=form, kernels=kernels: (
            _decode(engine, prompt, EngineConfig(kv_dtype=form, kernels=kernels), sampling).metrics.tokens_per_second
        )
        for form, kernels in product(FORMATS, ("auto", "reference"))
    }
    report(f"  decoding {tokens} tokens in every format")
    speeds = take_turns(rows, repeats)
    return {
        form: {
            name: {
                "tokens_per_second": asdict(ratio_interval(speeds[form, kernels])),
                "ratio": asdict(ratio_interval(speeds[form, kernels], speeds["auto", kernels])),
            }
            for name, kernels in (("default", "auto"), ("reference", "reference"))
        }
        for form in FORMATS
    }
