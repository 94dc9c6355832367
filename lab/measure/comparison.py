"""Several settings of the engine on one prompt, and what each costs. Their texts are compared by ``difference``.

Every setting decodes the prompt once briefly to warm up and then ``repeats`` times, in an order that changes with
every repeat. Each output has the same length: neither the end-of-text token nor a stop string ends it. A speed-up
compares two runs of the same repeat, made soon after one another.
"""

import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.errors import ConfigError, LabError, PromptError
from lab.measure.interval import Interval, factor_interval
from lab.measure.measuring import RunTurn, Spread, decode, make_ready, turns
from lab.trace.events import Event
from lab.trace.run import Run, acceptance_stats

MIN_CONFIGS, MAX_CONFIGS = 2, 6
WARM_UP_TOKENS = 16
WatchTurns = Callable[[RunTurn, int, Event | None], None]


class Case(NamedTuple):
    """A prompt, with the engine and the settings that decode it."""

    engine: Engine
    prompt: str
    config: EngineConfig
    sampling: SamplingParams


def compare(
    engine: Engine,
    prompt: str,
    configs: Mapping[str, EngineConfig],
    sampling: SamplingParams,
    repeats: int,
    *,
    cancelled: threading.Event | None = None,
    watch: WatchTurns = lambda turn, tokens, event: None,
) -> Iterator[tuple[RunTurn, Run]]:
    """Decode ``prompt`` with every setting in turn; a run is made when the iterator is asked for it.

    Args:
        sampling: its seed must be set and is used for all runs. Its ``stop`` is ignored.
        cancelled: once set, the run under way ends and is not yielded, and no other begins.
        watch: gets every event of the run under way with the number of tokens so far, and None before the first.

    Raises ConfigError: not two to five settings, nothing to time, or a setting that this engine cannot have;
    PromptError: a prompt that cannot be decoded; LabError: a run failed, or part of its setting was given up. As with
    the others, the setting is named.
    """
    refuse(configs, sampling, repeats)
    cases = {name: Case(engine, prompt, config, sampling) for name, config in configs.items()}
    yield from in_turns(cases, repeats, cancelled=cancelled or threading.Event(), watch=watch)


def refuse(configs: Mapping[str, EngineConfig], sampling: SamplingParams, repeats: int) -> None:
    """Raises ConfigError if that is no comparison, with whatever engine."""
    if not MIN_CONFIGS <= len(configs) <= MAX_CONFIGS:
        raise ConfigError(f"A comparison takes {MIN_CONFIGS} to {MAX_CONFIGS} settings, not {len(configs)}.")
    if repeats < 1 or sampling.max_tokens < 2 or sampling.seed is None:
        raise ConfigError("A comparison takes at least one repeat and two tokens, and a seed that all share.")


def in_turns(
    cases: Mapping[str, Case],
    repeats: int,
    *,
    cancelled: threading.Event,
    watch: WatchTurns = lambda turn, tokens, event: None,
) -> Iterator[tuple[RunTurn, Run]]:
    """As ``compare``, for cases that may differ in everything. Raises what decoding raises, with the case's name."""
    whole = {name: replace(case.sampling, ignore_eos=True, stop=(), stop_token_ids=()) for name, case in cases.items()}
    for name, (engine, prompt, config, _) in cases.items():  # before the first run: they may take minutes
        with _named(name, config):
            engine.prepare(prompt, config, whole[name])
    lengths: dict[str, int] = {}
    for turn in turns(cases, repeats):
        engine, prompt, config, sampling = cases[turn.name]
        most = sampling.max_tokens if turn.repeat else min(WARM_UP_TOKENS, sampling.max_tokens)
        how = replace(whole[turn.name], max_tokens=most)
        watch(turn, 0, None)
        with _named(turn.name, config):
            if turn.repeat:
                make_ready(engine, config, lengths[turn.name])
            run = decode(engine, prompt, config, how, cancelled=cancelled, watch=partial(watch, turn))
        if run is None:
            return
        lengths[turn.name] = len(run.prompt_token_ids) + sampling.max_tokens
        yield turn, run


@contextmanager
def _named(name: str, config: EngineConfig) -> Iterator[None]:
    """Prefixes errors raised inside with the setting's name; a prompt's error only if the setting sizes the pool."""
    try:
        yield
    except LabError as error:
        if isinstance(error, PromptError) and config.num_blocks is None:
            raise
        raise type(error)(f"{name}: {error}") from error


@dataclass(frozen=True)
class Summary:
    """The runs of one setting (``lab.trace.metrics`` defines each figure).

    Attributes:
        rates: tokens per second of each run.
        factors: tokens per second over the first setting's, for each repeat that has both.
        speedup: the spread of these factors. None: no repeat has both yet.
        likely_speedup: their geometric mean, and how sure that is.
        ttft_ms, itl_p50_ms, itl_p99_ms: medians.
        acceptance: accepted proposals / proposals, over all runs together. None: nothing was proposed.
        kv_reserved_bytes, kv_used_bytes, peak_memory_bytes: the most of any run.
    """

    rates: tuple[float, ...]
    factors: tuple[float, ...]
    tokens_per_second: Spread
    speedup: Spread | None
    likely_speedup: Interval | None
    ttft_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    acceptance: float | None
    kv_reserved_bytes: int
    kv_used_bytes: int
    peak_memory_bytes: int

    @property
    def one_run(self) -> bool:
        """The speed-up comes from a single repeat and may be chance."""
        return len(self.factors) == 1

    @property
    def clear(self) -> bool:
        """The speed-up's interval does not hold 1. Never true of fewer than two repeats."""
        likely = self.likely_speedup
        return likely is not None and likely.low is not None and not likely.low < 1 < likely.high


def summarise(runs: Mapping[str, Sequence[Run]]) -> dict[str, Summary]:
    """A summary of every setting that has a run; speed-ups are over the first setting. Runs are in order of repeats."""
    reference = [run.metrics.tokens_per_second for run in next(iter(runs.values()), ())]
    return {name: _summary(some, reference) for name, some in runs.items() if some}


def _summary(runs: Sequence[Run], reference: Sequence[float]) -> Summary:
    metrics = [run.metrics for run in runs]
    rates = tuple(m.tokens_per_second for m in metrics)
    factors = tuple(rate / base for rate, base in zip(rates, reference, strict=False))
    return Summary(
        rates=rates,
        factors=factors,
        tokens_per_second=Spread.of(rates),
        speedup=Spread.of(factors) if factors else None,
        likely_speedup=factor_interval(factors) if factors else None,
        ttft_ms=statistics.median(m.ttft_ms for m in metrics),
        itl_p50_ms=statistics.median(m.itl_p50_ms for m in metrics),
        itl_p99_ms=statistics.median(m.itl_p99_ms for m in metrics),
        acceptance=acceptance_stats(runs).acceptance,
        kv_reserved_bytes=max(m.kv_reserved_bytes for m in metrics),
        kv_used_bytes=max(m.kv_used_bytes for m in metrics),
        peak_memory_bytes=max(m.peak_memory_bytes for m in metrics),
    )


def typical(runs: Sequence[Run]) -> Run:
    """The run of median speed; of an even number, the slower of the two in the middle."""
    return sorted(runs, key=lambda run: run.metrics.tokens_per_second)[(len(runs) - 1) // 2]
