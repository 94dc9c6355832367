"""Runs compared: settings over texts of several lengths, and over several kinds of text."""

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from lab.claims.claim import ClaimChart, Figures, Series
from lab.claims.trial import Trial, passage
from lab.config import EngineConfig
from lab.measure.comparison import typical
from lab.measure.interval import median_interval, ratios
from lab.measure.measuring import steps
from lab.measure.scaling_fit import CACHED, UNCACHED, step_times
from lab.measure.workload import CODE, PROMPTS, held_out_prompts
from lab.trace.run import Run

TEXTS = 6
"""Texts of each kind, each measured once: the fewest whose median has a 95% interval. Repeats of one text are alike;
counted as separate samples they would make a figure look more certain than it is (Miller, 2411.00640, on clustered
questions)."""
Configs = Mapping[str, Mapping[str, Any]]
"""Settings by name, as ``claims.toml`` has them."""
RATES = {
    "tokens": lambda run: run.metrics.tokens_per_second,
    "steps": lambda run: 1 / statistics.median(step_times(run).ms),
}
"""How fast a run is: tokens per second, or 1 / the median time of a step after the prefill, in milliseconds."""
decode_rate = RATES["tokens"]


# -- over lengths ----------------------------------------------------------------------------


def length_sweep(
    trial: Trial, configs: Configs, lengths: Sequence[int], tokens: int, repeats: int
) -> dict[tuple[str, int], list[Run]]:
    """Runs by setting and length of the text, in the order of the repeats. Raises Stopped, LabError."""
    engine = trial.engine("matched")
    rows = {
        (name, length): partial(trial.generate, engine, passage(engine, length), EngineConfig(**config), tokens)
        for length in lengths
        for name, config in configs.items()
    }
    runs = trial.take_turns({f"{length} tokens, {name}": row for (name, length), row in rows.items()}, repeats)
    return dict(zip(rows, runs.values(), strict=True))


def by_length(
    trial: Trial,
    *,
    sizes: Mapping[str, Any],
    small: Mapping[str, Any],
    configs: Configs,
    compared: Mapping[str, Sequence[str]],
    chart: Mapping[str, str],
    rate: str = "tokens",
    as_claimed: float | None = None,
) -> Figures:
    """Each ratio's median and interval at each length.

    Args:
        sizes, small: ``lengths``, ``tokens`` and ``repeats``; ``small`` for a test.
        compared: by the start of its keys, the faster setting, the slower one, and the name of its line if it is drawn.
        as_claimed: the first ratio, as the article has it.
    """
    size = small if trial.small else sizes
    runs = trial.once(length_sweep, configs=configs, **size)
    lengths = tuple(size["lengths"])
    values: dict[str, Any] = {} if as_claimed is None else {"claimed": as_claimed}
    series = () if as_claimed is None else (Series("claimed", lengths, (as_claimed,) * len(lengths), "claimed"),)
    for start, (over, under, *line) in compared.items():
        found = {}
        for length in lengths:
            rates = (map(RATES[rate], runs[way, length]) for way in (over, under))
            found[f"{start}{length}"] = median_interval(ratios(*rates))
        values |= found
        series += tuple(Series(name, lengths, tuple(one.value for one in found.values())) for name in line)
    if as_claimed is not None:
        for length in lengths:
            last = steps(runs[under, length][0], "decode")[-1]
            values[f"share_{length}"] = last.kv_used_bytes / last.verify_bytes
    return Figures(values, ClaimChart("lines", chart["x"], chart["y"], series, chart.get("log", "")))


class CacheTimes(NamedTuple):
    """Milliseconds per token by length, medians; and the ratios without a cache over with it, by repeat."""

    lengths: tuple[int, ...]
    cached: tuple[float, ...]
    uncached: tuple[float, ...]
    ratios: tuple[tuple[float, ...], ...]
    chart: ClaimChart


def cache_times(trial: Trial, *, sizes: Mapping[str, Any], small: Mapping[str, Any], configs: Configs) -> CacheTimes:
    size = small if trial.small else sizes
    runs, lengths = trial.once(length_sweep, configs=configs, **size), tuple(size["lengths"])
    ms = {key: [1 / RATES["steps"](run) for run in some] for key, some in runs.items()}
    cached, uncached = ([ms[name, length] for length in lengths] for name in configs)
    medians = [tuple(map(statistics.median, some)) for some in (cached, uncached)]
    gains = tuple(tuple(ratios(*both)) for both in zip(uncached, cached, strict=True))
    series = tuple(Series(name, lengths, some) for name, some in zip((CACHED, UNCACHED), medians, strict=True))[::-1]
    return CacheTimes(lengths, *medians, gains, ClaimChart("lines", "tokens so far", "ms per token", series, log="xy"))


# -- over texts ------------------------------------------------------------------------------

GREEDY, PLAIN, PROGRAMS = "stories (greedy)", "stories (temperature 0.8)", "code (temperature 1.5)"
WRONG_DRAFT = "stories (wrong draft)"


class TextKind(NamedTuple):
    """Texts of one kind, and the draft that proposes in them."""

    draft: str
    temperature: float
    prompts: Sequence[str]


def kinds() -> dict[str, TextKind]:
    """From easy to hard. The pair was not trained on these stories."""
    stories = held_out_prompts()
    return {
        GREEDY: TextKind("matched", 0.0, stories),
        PLAIN: TextKind("matched", 0.8, stories),
        PROGRAMS: TextKind("matched", 1.5, CODE),
        WRONG_DRAFT: TextKind("mismatched", 0.0, stories),
    }


def text_sweep(
    trial: Trial, configs: Configs, tokens: int, kinds: Mapping[str, TextKind]
) -> dict[str, dict[str, list[Run]]]:
    """Runs by kind of text and setting, each text once with every setting, in turns; in a careful trial the typical run
    of several. Raises Stopped, LabError."""
    tokens, texts = (24, 2) if trial.small else (tokens, TEXTS)
    engines = {draft: trial.engine(draft) for draft in dict.fromkeys(one.draft for one in kinds.values())}
    rows = {
        (kind, name, place): partial(
            trial.generate, engines[one.draft], prompt, EngineConfig(**config), tokens, one.temperature
        )
        for kind, one in kinds.items()
        for place, prompt in enumerate(one.prompts[:texts], 1)
        for name, config in configs.items()
    }
    runs = trial.take_turns({f"{kind}, {name}, text {place}": row for (kind, name, place), row in rows.items()}, 1)
    found: dict[str, dict[str, list[Run]]] = {kind: {name: [] for name in configs} for kind in kinds}
    for (kind, name, _), some in zip(rows, runs.values(), strict=True):
        found[kind][name] += [typical(some)] if trial.careful else some
    return found


def ladder(trial: Trial, *, configs: Configs, tokens: int, claimed: Mapping[str, float]) -> Figures:
    """Each rung's speed over the first one's, text by text, beside the article's."""
    tales = {"tales": TextKind("matched", 0.0, PROMPTS)}
    [runs] = trial.once(text_sweep, configs=configs, tokens=tokens, kinds=tales).values()
    rates = {name: list(map(decode_rate, some)) for name, some in runs.items()}
    first, *others = claimed
    values, measured = {"rate": median_interval(rates[first])}, [1.0]
    for name in others:
        ratio = median_interval(ratios(rates[name], rates[first]))
        values |= {f"claimed: {name}": claimed[name] / claimed[first], f"measured: {name}": ratio}
        measured.append(ratio.value)
    series = (
        Series("claimed", tuple(claimed), tuple(rate / claimed[first] for rate in claimed.values()), "claimed"),
        Series("measured", tuple(claimed), tuple(measured)),
    )
    return Figures(values, ClaimChart("bars", "× the first rung", "", series))
