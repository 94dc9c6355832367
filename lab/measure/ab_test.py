"""Quality beside speed: two settings of the engine, A and B, over the same prompts.

Both decode every prompt, one right after the other and in alternating order, so that a
busy machine slows both alike. Quality: how far greedy outputs agree, and how likely A and B find
the texts that each of them wrote (teacher forcing). It matters whose text it is: a setting finds its own likelier than
another's, so each reads both, and comparing B with A gives the inverse of comparing A with B. Every output has the
same length: the end-of-text token does not end it.

With ``enable_prefix_caching``, every decoding of a prompt but the first finds its prefix cached.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import torch

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.errors import ConfigError
from lab.measure.interval import FEWEST, METHOD, Interval, bootstrap, ratio_interval, share_interval
from lab.measure.measuring import make_ready, sound
from lab.measure.prompts import longest, refuse_cut
from lab.measure.score import divergence, log_probabilities, surprise
from lab.trace.acceptance_stats import AcceptanceStats, acceptance_stats
from lab.trace.run import Run

TIMES = ("ttft_ms", "itl_p50_ms", "tokens_per_second")
"""The fields of ``Measured`` that have a mean over prompts."""
GUESSED: dict[str, Callable[..., Any]] = {
    "draft_acceptance_rate": lambda rounds, proposed, accepted: accepted / proposed,
    "mean_acceptance_length": lambda rounds, proposed, accepted: 1 + accepted / rounds,
}
"""Computed from the sum of all prompts' ``AcceptanceStats``, as ``lab.trace.metrics`` defines it for one run."""


@dataclass(frozen=True)
class Measured:
    """One setting on one prompt (``lab.trace.metrics`` defines the times). Times are medians over the repeats, guesses
    are those of all repeats."""

    ttft_ms: float
    itl_p50_ms: float
    tokens_per_second: float
    guesses: AcceptanceStats


@dataclass(frozen=True)
class Sample:
    """Both settings on one prompt.

    Attributes:
        exact_match_length: tokens until their greedy outputs first differ.
        identical: whether they never do.
        tokens: those of both outputs, A's and B's, on which both settings are scored at temperature 1.
        kl: KL(A || B) of the next-token distributions, in nats, summed over the tokens.
        a_surprise, b_surprise: -log p of the tokens, in nats, summed.
    """

    a: Measured
    b: Measured
    exact_match_length: int
    identical: bool
    tokens: int
    kl: float
    a_surprise: float
    b_surprise: float


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
    """Measure A and B and compare them.

    Args:
        sampling: of the outputs. Its seed and stops do not count: repeat i is drawn with seed i, to the full length.

    Returns:
        A JSON-ready dict: what was measured, ``summarise``'s figures, and those of each prompt as ``samples``.

    Raises:
        ConfigError: nothing to measure, or a setting that this engine cannot have.
        LabError: more tokens than the context leaves, a run failed, or part of its setting was given up.
    """
    if sampling.max_tokens < 2 or repeats < 1 or not prompts:
        raise ConfigError("comparing takes at least a prompt, a repeat and two tokens: one to wait for, one to time.")
    refuse_cut(engine, prompts, sampling.max_tokens)
    sampling = replace(sampling, ignore_eos=True, seed=0, stop=())
    for prompt, config in product(prompts, (a, b)):  # before the first run: they may take an hour
        engine.prepare(prompt, config, sampling)
    for config in (a, b):  # to warm up; not counted
        _decode(engine, prompts[0], config, sampling)
    samples = []
    for number, prompt in enumerate(prompts):
        samples.append(measure_sample(engine, a, b, prompt, sampling, repeats, b_first=number % 2 == 1))
        report(f"  prompt {number + 1} of {len(prompts)} done")
    return {
        "target": engine.target.name,
        "draft": engine.draft.name if engine.draft else None,
        "dtype": engine.dtype,
        "a": asdict(a),
        "b": asdict(b),
        "prompts": len(prompts),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "repeats": repeats,
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
    """Both settings on one prompt, taking turns; ``b_first``: B has the first turn. Repeat i samples with seed i."""
    a_runs, b_runs = [], []
    for repeat in range(repeats):
        turns = [(a_runs, a), (b_runs, b)]
        for runs, config in reversed(turns) if (repeat % 2 == 1) != b_first else turns:
            runs.append(_decode(engine, prompt, config, replace(sampling, seed=repeat)))
    greedy = [a_runs[0].token_ids, b_runs[0].token_ids]
    if not sampling.greedy:
        greedy = [_decode(engine, prompt, config, replace(sampling, temperature=0)).token_ids for config in (a, b)]
    same = matching(*greedy)

    prompt_ids, kl, a_surprise, b_surprise = a_runs[0].prompt_token_ids, 0.0, 0.0, 0.0
    outputs = a_runs[0].token_ids, b_runs[0].token_ids
    for output in outputs:
        log_a, log_b = (
            torch.cat(list(log_probabilities(engine, prompt_ids + output, config, first=len(prompt_ids))))
            for config in (a, b)
        )
        came = torch.tensor(output, device=log_a.device)
        kl += divergence(log_a, log_b).sum().item()
        a_surprise += surprise(log_a, came).sum().item()
        b_surprise += surprise(log_b, came).sum().item()
    return Sample(
        a=_measured(a_runs),
        b=_measured(b_runs),
        exact_match_length=same,
        identical=same == len(greedy[0]) == len(greedy[1]),
        tokens=sum(map(len, outputs)),
        kl=kl,
        a_surprise=a_surprise,
        b_surprise=b_surprise,
    )


def matching(a: list[int], b: list[int]) -> int:
    """Tokens before the first difference."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def summarise(samples: list[Sample]) -> dict[str, object]:
    """Means over prompts, and ratios of those means, each with its interval.

    Returns:
        ``metrics``: per metric its mean under ``a`` and ``b``, and ``ratio``, B / A; figures of guesses are over all
        prompts together, None if there were no guesses. ``exact_match_length``, ``identical_outputs`` (a share) and
        ``kl`` (nats per token).
    """
    sides = [sample.a for sample in samples], [sample.b for sample in samples]
    metrics: dict[str, dict[str, object]] = {}
    for name in TIMES:
        a, b = ([getattr(one, name) for one in side] for side in sides)
        found = {"a": ratio_interval(a), "b": ratio_interval(b), "ratio": ratio_interval(b, a)}
        metrics[name] = {which: asdict(interval) for which, interval in found.items()}
    for name, figure in GUESSED.items():
        metrics[name] = _of_guesses(figure, *([one.guesses for one in side] for side in sides))
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


def _of_guesses(figure: Callable[..., Any], a: list[AcceptanceStats], b: list[AcceptanceStats]) -> dict[str, object]:
    """``figure`` of each side's guesses, summed over prompts, and B / A."""
    columns = {
        which: [[one.rounds for one in side], [one.proposed for one in side], [one.accepted for one in side]]
        for which, side in (("a", a), ("b", b))
    }
    guessing = [which for which, (rounds, *_) in columns.items() if sum(rounds)]
    found = {which: asdict(bootstrap(columns[which], figure)) if which in guessing else None for which in "ab"}
    if len(guessing) < 2 or not found["a"]["value"]:
        return found | {"ratio": None}
    both = bootstrap([*columns["a"], *columns["b"]], lambda *sums: figure(*sums[3:]) / figure(*sums[:3]))
    return found | {"ratio": asdict(both)}


def _decode(engine: Engine, prompt: str, config: EngineConfig, sampling: SamplingParams) -> Run:
    make_ready(engine, config, longest(engine, [prompt]) + sampling.max_tokens)
    return sound(engine.generate(prompt, config, sampling), engine)


def _measured(runs: list[Run]) -> Measured:
    metrics = [run.metrics for run in runs]
    return Measured(
        ttft_ms=statistics.median(m.ttft_ms for m in metrics),
        itl_p50_ms=statistics.median(m.itl_p50_ms for m in metrics),
        tokens_per_second=statistics.median(m.tokens_per_second for m in metrics),
        guesses=acceptance_stats(runs),
    )


LABELS = {"perplexity": "perplexity, both texts"}
"""For metrics whose name does not say enough."""


def format_ab(result: dict) -> str:
    """A table of ``run_ab``'s result."""
    defaults = asdict(EngineConfig())
    sure = "means and their 95% intervals" if result["prompts"] >= FEWEST else f"means: intervals take {FEWEST} prompts"
    lines = []
    for side in ("a", "b"):
        changed = [f"{name}={value}" for name, value in result[side].items() if value != defaults[name]]
        lines.append(f"{side.upper()}: {', '.join(changed) or 'the default settings'}")
    drawn = ", ".join(f"{name.replace('_', '-')} {result[name]:g}" for name in ("temperature", "top_k", "top_p"))
    lines += [
        f"{result['prompts']} prompts, {result['max_tokens']} tokens each, {drawn}, {result['repeats']} times; {sure}",
        "",
        f"{'':24}{'A':30}{'B':30}B / A",
    ]
    for name, sides in result["metrics"].items():
        cells = ["-" if sides[side] is None else str(Interval(**sides[side])) for side in ("a", "b", "ratio")]
        lines.append(f"{LABELS.get(name, name):24}{cells[0]:28}  {cells[1]:28}  {cells[2]}")
    lines += [
        "",
        f"{'exact-match length':24}{Interval(**result['exact_match_length'])}",
        f"{'identical outputs':24}{Interval(**result['identical_outputs'])}",
        f"{'KL(A || B), nats':24}{Interval(**result['kl'])}",
    ]
    return "\n".join(lines)
