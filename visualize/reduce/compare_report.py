"""A comparison as JSON for the page: the numbers, the race, and what is said about the outputs."""

import statistics
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.cli.json_results import fell_back
from lab.config import EngineConfig, SamplingParams
from lab.measure.comparison import Summary, summarise, typical
from lab.measure.difference import DRAWING, OTHER_DRAWS, Difference, DivergentToken, draws, first_difference
from lab.measure.reference import Reference
from lab.settings import unused_settings
from lab.trace.events import Committed
from lab.trace.run import Run
from lab.util.messages import counted, listed
from visualize.charts.base import drawn
from visualize.charts.compare_charts import MARKS, bars, recorded_bars, times
from visualize.format_numbers import digits, in_bytes, three
from visualize.reduce.narration import quoted
from visualize.text import visible

DASH = "–"
_TABLES = tomllib.loads(Path(__file__).with_name("columns.toml").read_text("utf-8"))
COLUMNS, PARTINGS, THEORY = (_TABLES[name] for name in ("figures", "partings", "theory"))
"""The tables' columns, and what each holds: of the figures, of first differences, and of theory."""

REPETITIVE = 0.25
"""The share of repeated runs of four tokens from which on a text is said to repeat itself. Of texts of 96 tokens it was
0 to 0.04 at temperature 0.8, and 0.4 to 0.9 at 0, over the example prompts."""
REPEATS = "Speed-up is the median of per-repeat ratios, so it can differ from the ratio of two bars."

Runs = Mapping[str, Sequence[Run]]


def so_far(runs: Runs, recorded: Reference | None = None) -> dict[str, Any]:
    """Bars and table of the runs so far; empty without one. ``recorded``: the same, as another machine measured it."""
    summaries = summarise(runs)
    if not summaries:
        return {}
    names = list(runs)
    on_cpu = any(run.started.device == "cpu" for some in runs.values() for run in some)
    rows = [_row(i, name, summaries.get(name), on_cpu) for i, name in enumerate(names)]
    charts = drawn({"bars": bars(names, summaries)})
    if recorded and (known := recorded_bars(names, recorded.compare)):
        charts["bars"]["reference"] = drawn({"": known})[""]
    return {"charts": charts, "rows": rows}


def whole(
    configs: Mapping[str, EngineConfig],
    runs: Runs,
    partings: Mapping[tuple[str, str], Difference],
    recorded: Reference | None = None,
) -> dict[str, Any]:
    """The whole record but the theory, once every setting has a run. ``partings``: first differences of the first
    runs. ``recorded``: see ``so_far``."""
    record = so_far(runs, recorded)
    names = list(runs)
    first = runs[names[0]][0]
    places = {name: first_difference(first, some[0]) for name, some in runs.items()}
    for row, name in zip(record["rows"], names, strict=True):
        row["cells"][-1] = _output(places[name], name == names[0])
    said = [_verdict(names, places, len(first.token_ids), not first.sampling.greedy and _other_draws(configs, places))]
    said += _unsteady(runs)
    said += fell_back(some[0] for some in runs.values())
    said += _notes(configs, first, any(place is not None for place in places.values()))
    said += _elsewhere(runs, recorded) if recorded else []
    said += [REPEATS] if len(runs[names[0]]) > 1 else []
    marks = dict(zip(names, MARKS, strict=False))
    return record | {
        "race": race({name: typical(some) for name, some in runs.items()}),
        "said": said,
        "partings": [_parting(pair, marks, found) for pair, found in partings.items()],
    }


def race(runs: Mapping[str, Run]) -> dict[str, Any]:
    """A run of each setting on one clock.

    Returns:
        ``prompt``, ``ms`` (of the slowest), and ``lanes``: {name, mark, commits: [[t_ms, [[text, origin], ...]], ...]},
        with one text per token. Texts have been passed through ``visible``, and are to be set as text.
    """
    lanes = []
    for i, (name, run) in enumerate(runs.items()):
        commits = [commit(event) for event in run.events if isinstance(event, Committed)]
        if run.finished and run.finished.text:  # of tokens that are there already
            commits[-1][1][-1][0] += visible(run.finished.text)
        lanes.append({"name": name, "mark": MARKS[i], "commits": commits})
    first = next(iter(runs.values()))
    return {"prompt": visible(first.prompt), "ms": max(lane["commits"][-1][0] for lane in lanes), "lanes": lanes}


def commit(event: Committed) -> list[Any]:
    """One entry of a lane's ``commits`` in ``race``."""
    pieces = [[visible(text), origin] for text, origin in zip(event.pieces, event.origins, strict=True)]
    return [round(event.t_ms, 2), pieces]


def live(prompt: str, lanes: Mapping[str, tuple[int, Sequence[Any]]], tokens: int) -> dict[str, Any]:
    """Lanes as they are measured, like those of ``race``: each one's newest ``run`` by its number, as far as it is."""
    found = [
        {"name": name, "mark": MARKS[i], "run": run, "commits": list(commits)}
        for i, (name, (run, commits)) in enumerate(lanes.items())
    ]
    return {"prompt": visible(prompt), "tokens": tokens, "lanes": found}


def _parting(pair: tuple[str, str], marks: Mapping[str, str], found: Difference) -> dict[str, Any]:
    """A row of the table of first differences."""
    sides = [cell for side in (found.a, found.b) for cell in _side(side)]
    mark = " ".join(marks[name] for name in pair)
    return {"name": ", ".join(pair), "mark": mark, "cells": [[f"{found.place}", ""], *sides]}


def _side(own: DivergentToken | None) -> list[list[str]]:
    if own is None:
        return [["ended", ""], [DASH, ""]]
    other = "" if own.other_p is None else f", the other's {_p(own.other_p)}"
    return [[quoted(own.text), f"p {_p(own.p)}{other}"], [_p(own.margin), ""]]


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 or value == 0 else f"{value:.1e}"


def _verdict(names: list[str], places: Mapping[str, int | None], tokens: int, redrawn: bool) -> str:
    """Settings that wrote the same. ``redrawn``: where another differs, it is only because it used the random
    draws differently."""
    same = [name for name in names if places[name] is None]
    why = ": at this temperature speculation changes the draws, not the distribution" if redrawn else ""
    if len(same) == len(names):
        all_of_them = "both" if len(names) == 2 else f"all {len(names)}"
        return f"Identical outputs: {all_of_them} settings wrote the same {counted(tokens, 'token')}."
    if len(same) > 1:
        rest = "the other differs" if len(names) == len(same) + 1 else "the others differ"
        return f"{listed(same)} wrote the same {counted(tokens, 'token')}; {rest}{why}."
    return f"No other setting wrote what {names[0]} wrote{why}."


def _elsewhere(runs: Runs, recorded: Reference) -> list[str]:
    """The reference machine's measurement: what it says where this one cannot."""
    first, *others = summarise(runs).items()
    known = recorded.compare
    said = [
        f"{name} {times(statistics.median(known[name]) / statistics.median(known[first[0]]))}"
        for name, one in others
        if not one.clear and {name, first[0]} <= known.keys()
    ]
    unsure = [f"Where these repeats cannot tell, it measured against {first[0]}: {', '.join(said)}."] if said else []
    return [" ".join([f"Grey bars: recorded on {recorded.label}.", *unsure])] if known.keys() & runs.keys() else []


def _other_draws(configs: Mapping[str, EngineConfig], places: Mapping[str, int | None]) -> bool:
    """True if the settings whose outputs differ from the first's have the same KV format, but other draws for
    draft tokens or none, and a lossless rule."""
    first, *others = [
        configs[name] for name, place in places.items() if place is not None or name == next(iter(places))
    ]
    lossless = all(one.rejection_sample_method != "typical" for one in (first, *others))
    return lossless and all(one.kv_dtype == first.kv_dtype and draws(one) != draws(first) for one in others)


def _output(place: int | None, reference: bool) -> list[str]:
    if reference:
        return ["reference", ""]
    return ["identical", ""] if place is None else ["differs", f"after {place}"]


def _unsteady(runs: Runs) -> list[str]:
    """Settings whose own repeats differ: comparing their outputs with others' then says nothing."""
    return [
        f"{name} did not write the same every time."
        for name, some in runs.items()
        if any(first_difference(some[0], run) is not None for run in some[1:])
    ]


def _repeated(token_ids: Sequence[int]) -> float:
    """The share of a text's runs of four tokens that occurred in it before."""
    found = [tuple(token_ids[i : i + 4]) for i in range(len(token_ids) - 3)]
    return 1 - len(set(found)) / len(found) if found else 0.0


def _notes(configs: Mapping[str, EngineConfig], first: Run, differ: bool) -> list[str]:
    """Notes that readers must know before they trust the numbers."""
    sampled = SamplingParams(temperature=first.sampling.temperature)
    notes = [f"{name}: {text}" for name, config in configs.items() for text in unused_settings(config, sampled)]
    drafting = any(config.speculative in DRAWING for config in configs.values())
    speculating = any(config.speculative != "off" for config in configs.values())
    if first.sampling.greedy and speculating and (share := _repeated(first.token_ids)) >= REPETITIVE:
        notes.append(
            f"This greedy text repeats itself: {share:.0%} of its runs of four tokens occurred before. Such text is "
            "easy to draft. Expect less acceptance at temperature 0.8."
        )
    if not first.sampling.greedy and drafting:
        notes.append(OTHER_DRAWS)
    elif differ and first.sampling.greedy:
        notes.append(
            "Greedy outputs part where rounding swaps two nearly equally likely tokens, or where a KV format "
            "changes what attention reads; from there on each text goes its own way."
        )
    if any(config.enable_prefix_caching for config in configs.values()):
        notes.append(
            "With prefix caching, the blocks that the prompt fills are found and not computed: the warm-up left them "
            "in the cache. All but the prompt's last token can be found; a prompt that fills no block gains nothing."
        )
    return notes


def faster(summary: Summary) -> list[str]:
    """A speed-up, if it is unlikely to be chance, and in small how certain it is."""
    found, repeats = summary.speedup, len(summary.factors)
    if found is None:
        return [DASH, ""]
    if repeats == 1:
        return [times(found.median), "one repeat"]
    quartiles = f"{digits(found.lower)} to {digits(found.upper)}"
    if summary.clear:
        return [times(found.median), quartiles]
    if repeats == 2:
        return [quartiles, "too few repeats"]
    likely = summary.likely_speedup  # 1 lies in it, as it need not in the quartiles
    return [f"{digits(likely.low)} to {digits(likely.high)}", "≈ same (n.s.)"]


def _row(i: int, name: str, summary: Summary | None, on_cpu: bool) -> dict[str, Any]:
    cells = [[DASH, ""] for _ in COLUMNS] if summary is None else _cells(summary, on_cpu, reference=i == 0)
    return {"name": name, "mark": MARKS[i], "cells": cells}


def _cells(summary: Summary, on_cpu: bool, *, reference: bool) -> list[list[str]]:
    """Per column: the figure, and the small text beside it. ``on_cpu``: memory is the whole process's."""
    rate = summary.tokens_per_second
    kept = summary.acceptance
    return [
        [three(rate.median), f"{three(rate.lower)} to {three(rate.upper)}"],
        [times(1), "reference"] if reference else faster(summary),
        [f"{three(summary.ttft_ms)} ms", ""],
        [f"{three(summary.itl_p50_ms)} ms", f"p99 {three(summary.itl_p99_ms)}"],
        [DASH, ""] if kept is None else [f"{kept:.0%}", ""],
        [in_bytes(summary.kv_used_bytes), f"of {in_bytes(summary.kv_reserved_bytes)}"]
        if summary.kv_reserved_bytes
        else [DASH, ""],
        [in_bytes(summary.peak_memory_bytes), "process" if on_cpu else ""],
        [DASH, ""],
    ]
