"""How long a token takes as the text grows, with and without a cache.

A curve is drawn through medians of ten steps each: a single step that something else held up would otherwise bend it.
What holds up several medians in a row makes its exponent less certain (``power.worth``).
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.errors import ConfigError
from lab.measure.measuring import sound, steps
from lab.measure.power import FEWEST, Power, fit_power
from lab.trace.events import Committed
from lab.trace.run import Run
from lab.util.messages import counted

TOGETHER = 10
"""Steps per median."""
CACHED, UNCACHED = "with a cache", "without"


@dataclass(frozen=True)
class Curve:
    """Lengths in tokens, those read by the end of each step's pass, and milliseconds of the step."""

    lengths: tuple[int, ...]
    ms: tuple[float, ...]

    @property
    def medians(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lengths and milliseconds of every ten steps; steps left over at the end are dropped."""
        starts = range(0, len(self.ms) - TOGETHER + 1, TOGETHER)
        lengths, ms = (
            tuple(statistics.median(values[start : start + TOGETHER]) for start in starts)
            for values in (self.lengths, self.ms)
        )
        return lengths, ms

    @property
    def fit(self) -> Power:
        """The curve through the medians. Raises ValueError for fewer than fifty steps."""
        return fit_power(*self.medians, consecutive=True)

    @property
    def shown(self) -> Power:
        """The curve to draw and to quote: the fit, or a flat line through the medians' mean where they do not rise
        above their scatter, of which any fit makes some growth."""
        fit = self.fit
        return fit if fit.rises else replace(fit, constant=statistics.fmean(self.medians[1]), factor=0.0)


def curve(run: Run) -> Curve:
    """The steps of a run after its prefill, each of one token."""
    decoded = steps(run, "decode")
    first = len(run.prompt_token_ids) + 1
    return Curve(tuple(range(first, first + len(decoded))), tuple(step.total_ms for step in decoded))


def measure_growth(
    engine: Engine,
    prompt: str,
    max_tokens: int,
    *,
    cancelled: threading.Event,
    watch: Callable[[str, int], None] = lambda name, tokens: None,
) -> dict[str, Curve]:
    """Decode greedily with and without a cache; ``watch`` is told which has how many tokens. Empty if cancelled.

    Raises:
        ConfigError: too few tokens to draw a curve through.
        PromptError: a prompt that cannot be decoded.
        LabError: a run failed.
    """
    least = FEWEST * TOGETHER + 1  # the prefill gives the first
    if max_tokens < least:
        raise ConfigError(f"To see times grow takes {least} tokens or more, not {max_tokens}.")
    room = engine.context_length - len(engine.tokenizer(prompt)["input_ids"])
    if room < least:
        raise ConfigError(
            f"The prompt leaves room for {counted(max(0, room), 'token')}; to see times grow takes {least}."
        )
    plain = engine.clone()
    small = EngineConfig(num_blocks=-(-engine.context_length // EngineConfig.block_size))  # one context is enough
    curves = {}
    for name, config in ((CACHED, small), (UNCACHED, EngineConfig(kv_cache=False))):
        plain.generate(prompt, config, SamplingParams(max_tokens=8, ignore_eos=True))  # to warm up; not counted
        events, tokens = [], 0
        for event in plain.stream(
            prompt, config, SamplingParams(max_tokens=max_tokens, ignore_eos=True), cancelled=cancelled
        ):
            events.append(event)
            if isinstance(event, Committed):
                tokens += len(event.token_ids)
                watch(name, tokens)
        if cancelled.is_set():
            return {}
        curves[name] = curve(sound(Run(events), plain))
    return curves
