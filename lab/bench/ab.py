"""Quality beside speed: two settings of the engine, A and B, over the same prompts.

Both decode every prompt, one right after the other and in alternating order, so that a
busy machine slows both alike. Quality: how far greedy outputs agree, and what B thinks of
the text that A wrote (teacher forcing), beside what A thinks of it. Every output has the
same length: the end-of-text token does not end it.

With ``enable_prefix_caching`` all but the first decoding of a prompt find its prefix cached.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace

import torch

from lab.bench.interval import METHOD, Interval, ratio_interval, share_interval
from lab.bench.measuring import sound
from lab.bench.score import divergence, log_probabilities, surprise
from lab.config import ConfigError, EngineConfig, SamplingParams
from lab.decode.engine import Engine
from lab.trace.recorder import Run


@dataclass(frozen=True)
class Measured:
    """One setting on one prompt (``lab.trace.metrics`` defines each). Times: median over the
    repeats; acceptance: mean over them, None without a drafter."""

    ttft_ms: float
    itl_p50_ms: float
    tokens_per_second: float
    draft_acceptance_rate: float | None
    mean_acceptance_length: float | None


@dataclass(frozen=True)
class Pair:
    """Both settings on one prompt.

    Attributes:
        exact_match_length: tokens until their greedy outputs first differ.
        identical: they never do.
        tokens: those of A's output, on which both are scored, at temperature 1.
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
    *,
    max_tokens: int,
    temperature: float,
    repeats: int,
    report: Callable[[str], None],
) -> dict[str, object]:
    """Measure A and B and compare them.

    Returns:
        A JSON-ready dict: what was measured, ``summarise``'s figures, and the prompts' own as ``samples``.

    Raises:
        ConfigError: nothing to measure, or a setting that this engine cannot have.
        LabError: a run failed, or went on without a part of its setting.
    """
    if max_tokens < 2 or repeats < 1 or not prompts:
        raise ConfigError("comparing takes a prompt, a repeat and two tokens at least: one to wait for, one to time.")
    sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature, ignore_eos=True, seed=0)
    for config in (a, b):  # to warm up; not counted
        _decode(engine, prompts[0], config, sampling)
    pairs = []
    for number, prompt in enumerate(prompts):
        pairs.append(measure_pair(engine, a, b, prompt, sampling, repeats, b_first=number % 2 == 1))
        report(f"  prompt {number + 1} of {len(prompts)} done")
    return {
        "target": engine.target.name,
        "draft": engine.draft.name if engine.draft else None,
        "dtype": engine.dtype,
        "a": asdict(a),
        "b": asdict(b),
        "prompts": len(prompts),
        "max_tokens": max_tokens,
        "temperature": temperature,
        "repeats": repeats,
        "intervals": METHOD,
        **summarise(pairs),
        "samples": [asdict(pair) for pair in pairs],
    }


def measure_pair(
    engine: Engine,
    a: EngineConfig,
    b: EngineConfig,
    prompt: str,
    sampling: SamplingParams,
    repeats: int,
    *,
    b_first: bool = False,
) -> Pair:
    """Both settings on one prompt, taking turns; ``b_first``: B has the first one. Repeat i is drawn with seed i."""
    a_runs, b_runs = [], []
    for repeat in range(repeats):
        turns = [(a_runs, a), (b_runs, b)]
        for runs, config in reversed(turns) if (repeat % 2 == 1) != b_first else turns:
            runs.append(_decode(engine, prompt, config, replace(sampling, seed=repeat)))
    greedy = [a_runs[0].token_ids, b_runs[0].token_ids]
    if not sampling.greedy:
        greedy = [_decode(engine, prompt, config, replace(sampling, temperature=0)).token_ids for config in (a, b)]
    same = matching(*greedy)

    prompt_ids, output = a_runs[0].prompt_token_ids, a_runs[0].token_ids
    log_a, log_b = (
        torch.cat(list(log_probabilities(engine, prompt_ids + output, config, first=len(prompt_ids))))
        for config in (a, b)
    )
    came = torch.tensor(output, device=log_a.device)
    return Pair(
        a=_measured(a_runs),
        b=_measured(b_runs),
        exact_match_length=same,
        identical=same == len(greedy[0]) == len(greedy[1]),
        tokens=len(output),
        kl=divergence(log_a, log_b).sum().item(),
        a_surprise=surprise(log_a, came).sum().item(),
        b_surprise=surprise(log_b, came).sum().item(),
    )


def matching(a: list[int], b: list[int]) -> int:
    """Tokens before the first difference."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def summarise(pairs: list[Pair]) -> dict[str, object]:
    """Means over prompts, and ratios of those means, each with its interval.

    Returns:
        ``metrics``: per metric its mean under ``a`` and ``b``, and ``ratio``, B / A; None where one has no drafter.
        ``exact_match_length``, ``identical_outputs`` (a share) and ``kl`` (nats a token).
    """
    metrics: dict[str, dict[str, object]] = {}
    for name in (field.name for field in fields(Measured)):
        a, b = ([getattr(side, name) for side in sides] for sides in zip(*((p.a, p.b) for p in pairs), strict=True))
        metrics[name] = {
            "a": None if None in a else asdict(ratio_interval(a)),
            "b": None if None in b else asdict(ratio_interval(b)),
            "ratio": None if None in a + b or not sum(a) else asdict(ratio_interval(b, a)),
        }
    tokens = [pair.tokens for pair in pairs]
    surprises = {
        "a": [pair.a_surprise for pair in pairs],
        "b": [pair.b_surprise for pair in pairs],
        "ratio": [pair.b_surprise - pair.a_surprise for pair in pairs],
    }
    metrics["perplexity"] = {
        side: asdict(ratio_interval(sums, tokens).map(math.exp)) for side, sums in surprises.items()
    }
    return {
        "metrics": metrics,
        "exact_match_length": asdict(ratio_interval([pair.exact_match_length for pair in pairs])),
        "identical_outputs": asdict(share_interval(sum(pair.identical for pair in pairs), len(pairs))),
        "kl": asdict(ratio_interval([pair.kl for pair in pairs], tokens)),
    }


def _decode(engine: Engine, prompt: str, config: EngineConfig, sampling: SamplingParams) -> Run:
    return sound(engine.generate(prompt, config, sampling))


def _measured(runs: list[Run]) -> Measured:
    metrics = [run.metrics for run in runs]
    accepted = [m.draft_acceptance_rate for m in metrics], [m.mean_acceptance_length for m in metrics]
    return Measured(
        ttft_ms=statistics.median(m.ttft_ms for m in metrics),
        itl_p50_ms=statistics.median(m.itl_p50_ms for m in metrics),
        tokens_per_second=statistics.median(m.tokens_per_second for m in metrics),
        draft_acceptance_rate=None if None in accepted[0] else statistics.mean(accepted[0]),
        mean_acceptance_length=None if None in accepted[1] else statistics.mean(accepted[1]),
    )


def format_ab(result: dict) -> str:
    """A table of ``run_ab``'s result."""
    defaults = asdict(EngineConfig())
    lines = []
    for side in ("a", "b"):
        changed = [f"{name}={value}" for name, value in result[side].items() if value != defaults[name]]
        lines.append(f"{side.upper()}: {', '.join(changed) or 'the default settings'}")
    lines += [
        f"{result['prompts']} prompts, {result['max_tokens']} tokens each, temperature {result['temperature']:g}, "
        f"{result['repeats']} times; means and their 95% intervals",
        "",
        f"{'':24}{'A':30}{'B':30}B / A",
    ]
    for name, sides in result["metrics"].items():
        cells = ["-" if sides[side] is None else str(Interval(**sides[side])) for side in ("a", "b", "ratio")]
        lines.append(f"{name:24}{cells[0]:30}{cells[1]:30}{cells[2]}")
    lines += [
        "",
        f"{'exact-match length':24}{Interval(**result['exact_match_length'])}",
        f"{'identical outputs':24}{Interval(**result['identical_outputs'])}",
        f"{'KL(A || B), nats':24}{Interval(**result['kl'])}",
    ]
    return "\n".join(lines)
