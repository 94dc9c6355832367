"""Tables and figures of the documentation, written from the records in ``docs/bench``: ``make docs``.

A page marks what is generated: everything between ``<!-- generated: NAME -->`` and ``<!-- end -->`` is replaced by what
the function NAME below returns. With ``--check`` nothing is written, and pages that are not up to date are named.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import lab.settings
from lab.trace.roofline import Achieved

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?P<start><!-- generated: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)
EVENING_PATH = (
    "lab/engine/sequence.py",
    "lab/engine/scheduler.py",
    "lab/kv_cache/block_pool.py",
    "lab/kv_cache/block_table.py",
    "lab/kv_cache/prefix_cache.py",
    "lab/kv_cache/formats.py",
    "lab/kv_cache/attention.py",
    "lab/engine/core.py",
    "lab/engine/drafters.py",
    "lab/backends/torch/sampler.py",
    "lab/backends/torch/rejection_sampler.py",
    "lab/engine/verification.py",
)
"""The files that explain the engine, in the order of reading."""
GENERATED: dict[str, Callable[[], list[str]]] = {}
Row = Mapping[str, Any]


def generated(function: Callable[[], list[str]]) -> Callable[[], list[str]]:
    """Register a function that returns the lines of one block."""
    GENERATED[function.__name__.replace("_", "-")] = function
    return function


@functools.cache
def record(name: str) -> dict[str, Any]:
    """One benchmark's record."""
    return json.loads((ROOT / f"docs/bench/{name}.json").read_text("utf-8"))


def table(head: str, rows: Iterable[Iterable[object]]) -> list[str]:
    """Lines of a Markdown table. ``head``: the columns' titles between bars."""
    cells = [[title.strip() for title in head.split("|")], *map(list, rows)]
    lines = [f"| {' | '.join(map(str, row))} |".replace("|  |", "| |") for row in cells]
    return [lines[0], f"|{' --- |' * len(cells[0])}", *lines[1:]]


def cells(rows: Mapping[str, Row] | Iterable[Row], *columns: str) -> list[list[str]]:
    """A row of cells for each of ``rows`` (of a mapping: its key is the ``name``): every column's template, filled."""
    if isinstance(rows, Mapping):
        rows = [{"name": name, **row} for name, row in rows.items()]
    return [[column.format(**row) for column in columns] for row in rows]


def block(name: str, head: str, rows: Callable[[], Any], *columns: str) -> None:
    """Register a block that is one table."""
    GENERATED[name] = lambda: table(head, cells(rows(), *columns))


def by_name(rows: Iterable[Row]) -> dict[str, Row]:
    return {row["name"]: row for row in rows}


QUARTILES = "{lower:.0f} to {upper:.0f}"
GENERATED["settings"] = lab.settings.table


# -- README --------------------------------------------------------------------------------------


@generated
def headlines() -> list[str]:
    """Five numbers, each with its command."""
    ladder, serve = record("ladder-cpu"), record("serve-cpu")
    rows = by_name(ladder["ladder"])
    drafters = record("drafters-cpu")
    speedup = {(row["drafter"], row["temperature"]): row["speedup"]["value"] for row in drafters["rows"]}
    many = serve["speculation"]["temperature 0.8"]["ratio_by_size"]["16"]
    kept = {row["kv_dtype"]: row for row in record("kv-error-cpu")["formats"]}
    paged, contiguous = (serve["memory"][name]["mean_sequences"] for name in ("paged", "contiguous, the most"))
    decode = record("gpu-h200")["parts"]["2"]["result"]["decode"]["decode"]
    measured = {
        f"KV cache, greedy, {ladder['max_tokens']} tokens": (
            f"{rows['cache']['median']:.0f} tokens/s with it, {rows['no cache']['median']:.0f} without",
            "`python -m lab.bench ladder`",
        ),
        f"Speculative decoding, γ = 4, {drafters['prompts']} unseen texts, one request": (
            f"Greedy: {speedup['eagle3', 0]:.2f}× the speed of the cache alone with the EAGLE-3 head, "
            f"{speedup['draft', 0]:.2f}× with the draft model. At temperature 0.8: {speedup['eagle3', 0.8]:.2f}× and "
            f"{speedup['draft', 0.8]:.2f}×. With 16 requests at once it does not pay: {many:.2f}×",
            "`python -m lab.bench drafters`, `serve`",
        ),
        "INT8 KV cache": (
            f"{kept['int8']['bytes_per_token']:,} bytes per token instead of {kept['auto']['bytes_per_token']:,}; "
            f"perplexity {kept['int8']['perplexity']:.2f} and {kept['auto']['perplexity']:.2f}",
            "`python -m lab.bench kv --text FILE`",
        ),
        "Paged KV cache in the same memory": (
            f"{paged:.1f} requests at once on average instead of {contiguous:.1f}",
            "`python -m lab.bench serve`",
        ),
        "A model of Llama 3.1 8B's shape on an H200, one request": (
            f"{decode['tokens_per_second']:.0f} tokens/s, {decode['of_copy']:.0%} of the memory bandwidth (MBU)",
            "`python -m lab.bench gpu`",
        ),
    }
    return table("what | measured | command", [(what, *found) for what, found in measured.items()])


@generated
def evening_path() -> list[str]:
    """The twelve files that explain the engine, with their sizes."""
    sizes = {name: len((ROOT / name).read_text("utf-8").splitlines()) for name in EVENING_PATH}
    links = (f"[{name.removeprefix('lab/').removesuffix('.py')}](LINK/{name}) {size}" for name, size in sizes.items())
    return [f"{' · '.join(links)} ({sum(sizes.values()):,} lines)"]


# -- measurements on a CPU -----------------------------------------------------------------------


@generated
def ladder() -> list[str]:
    found = record("ladder-cpu")
    rows, it = found["ladder"], found["machine"]
    base = by_name(rows)["cache"]["median"]
    rows = [row | {"over_cache": row["median"] / base} for row in rows]
    return [
        f"On {it['torch_threads']} CPU cores ({it['processor']}), {found['dtype'].replace(', ', ' with ')}, "
        f"torch {it['torch'].partition('+')[0]}, transformers {it['transformers']}:",
        "",
        *table(
            " | tokens/s, median | quartiles | x cache",
            cells(rows, "{name}", "{median:.0f}", QUARTILES, "{over_cache:.2f}"),
        ),
    ]


@generated
def unseen() -> list[str]:
    found = record("ladder-cpu")
    rows = found["unseen"]
    plain, drafted, sampled, sampled_drafted = (row for [row] in cells(rows, f"{{median:.0f}} ({QUARTILES})"))
    ratios = (f"{rows[i + 1]['median'] / rows[i]['median']:.2f}" for i in (0, 2))
    return table(
        f"{found['unseen_texts']} unseen texts | greedy | temperature 0.8",
        [("cache", plain, sampled), ("cache + speculation (γ = 4)", drafted, sampled_drafted), ("ratio", *ratios)],
    )


@generated
def llama_cpp() -> list[str]:
    found = [record("llama-cpu"), record("llama-2-threads-cpu")]
    columns = []
    for one in found:
        base = by_name(one["rows"])["llama.cpp, bf16"]["median"]
        rows = [row | {"ratio": row["median"] / base} for row in one["rows"]]
        columns.append(cells(rows, "{median:.0f}", QUARTILES, "x {ratio:.2f}"))
    same = [sum(length == one["max_tokens"] for length in one["alike"]["bf16"]) for one in found]
    rows = zip(found[0]["rows"], *columns, strict=True)
    return [
        *table(" | 1 thread | | | 2 threads | | ", [(row["name"], *a, *b) for row, a, b in rows]),
        "",
        f"The same {found[0]['max_tokens']} tokens in bfloat16: {same[0]} of {found[0]['prompts']} prompts on one "
        f"thread, {same[1]} on two.",
    ]


@generated
def many_at_once() -> list[str]:
    found = record("serve-cpu")
    ratios = found["ratios"]
    columns = ["{name}", "{tokens_per_second:.0f}", "{ttft_p50_ms:.0f}", "{itl_p50_ms:.1f} / {itl_p99_ms:.1f}"]
    rows = found["throughput"]
    running = [f"{row['mean_sequences']:.1f}" if "mean_sequences" in row else "" for row in rows.values()]
    return [
        *table(
            " | tokens/s | TTFT p50, ms | ITL p50 / p99, ms | running, mean",
            [[*row, mean] for row, mean in zip(cells(rows, *columns), running, strict=True)],
        ),
        "",
        "Ratios of tokens/s: 16 of one length at once over one, "
        f"{ratios['16 of one length at once / one']:.1f}; the long-tailed mix, paged, over one after "
        f"another, {ratios['batched paged / one after another']:.1f}.",
    ]


@generated
def batch_size() -> list[str]:
    found = record("serve-cpu")

    def cell(size: str, temperature: str) -> str:
        off, on = (
            found["growth"][f"{size} at once, temperature {temperature}, speculation {way}"]["tokens_per_second"]
            for way in ("off", "draft")
        )
        reported = found["speculation"][f"temperature {temperature}"]["told_by_size"][size]
        return f"{off:.0f}, {on:.0f}: {on / off:.2f} ({reported.replace('cannot be told', 'too close to call')})"

    sizes = found["speculation"]["temperature 0"]["ratio_by_size"]
    rows = [(size, cell(size, "0"), cell(size, "0.8")) for size in sizes]
    return table("requests at once | greedy | temperature 0.8", rows)


@generated
def gamma_by_batch_size() -> list[str]:
    found = record("gammas-cpu")
    rows = []
    for load, gains in found["table_over"].items():
        speeds = (f"{one['median']:.0f}" for one in found["tokens_per_second"][load].values())
        rows.append(
            [load, *speeds, *("{median:.2f} ({lower:.2f} to {upper:.2f})".format(**one) for one in gains.values())]
        )
    settings = [*found["tokens_per_second"][load]]
    return table(" | ".join(["requests", *settings[:-1], "table", *(f"table / {name}" for name in gains)]), rows)


@generated
def kv_formats() -> list[str]:
    found = record("kv-error-cpu")
    exempt = found.get("exempt") or {"formats": []}
    rows = [*found["formats"], *(row | {"kv_dtype": f"{row['kv_dtype']}, ends exempt"} for row in exempt["formats"])]
    columns = "{kv_dtype}", "{bytes_per_token:,}", "{key_error:.2%}", "{value_error:.2%}", "{perplexity:.2f}"
    ratio = "{perplexity_ratio[low]:.4f} to {perplexity_ratio[high]:.4f}"
    speeds = (
        f"{{{ratio}[value]:.2f}}× ({{{ratio}[low]:.2f}} to {{{ratio}[high]:.2f}})"
        for ratio in ("speed[default][ratio]", "speed[reference][ratio]")
    )
    return [
        f"Over {found['scored_tokens']:,} tokens:",
        "",
        *table(
            "format | bytes per token | error of keys | of values | perplexity | of native | KL to native, nats | "
            "decode speed | by torch",
            cells(rows, *columns, ratio, "{kl[value]:.2g} ({kl[low]:.2g} to {kl[high]:.2g})", *speeds),
        ),
        *(["", exempt_ends(found)] if exempt["formats"] else ()),
    ]


def exempt_ends(found: Row) -> str:
    """What it changes to leave the first and the last layer in the model's own dtype."""
    whole = {row["kv_dtype"]: row for row in found["formats"]}
    pairs = [(row, whole[row["kv_dtype"]]) for row in found["exempt"]["formats"]]
    less = sorted(1 - row["kl"]["value"] / before["kl"]["value"] for row, before in pairs)
    more = sorted(row["bytes_per_token"] / before["bytes_per_token"] - 1 for row, before in pairs)
    layers = found["exempt"]["kv_cache_dtype_skip_layers"].replace(" ", " and ")
    return (
        f"With layers {layers} exempt, the KL is {less[0]:.0%} to {less[-1]:.0%} lower, for {more[0]:.0%} to "
        f"{more[-1]:.0%} more bytes."
    )


@generated
def recording_distributions() -> list[str]:
    found = record("logprobs-cpu")
    added = found["added_ms"]
    lower = round(added["lower"], 2) + 0.0  # never -0.00
    said = [
        f"The {found['logprobs']} most likely tokens around every verdict add {added['median']:.2f} ms to a round of "
        f"{found['plain_ms']:.1f} ms (quartiles {lower:.2f} to {added['upper']:.2f})."
    ]
    if top := found.get("top_tokens_added_ms"):
        said.append(f"The target's alone, at each position, add {top['median'] / found['plain_ms']:.1%} of a round.")
    return said


@generated
def watching() -> list[str]:
    found = record("page-cpu")
    figures, goals = found["figures"], found["goals"]

    def slower(key: str) -> str:
        low, high = (100 * figures[f"slow_down{key}_{quartile}"] for quartile in ("q1", "q3"))
        return f"{figures[f'slow_down{key}']:.0%} ({low:.0f} to {high:.0f})"

    rows = [
        ("during a run, frames per second", "{live_frames_per_second:.1f}", goals["live_frames_per_second"]),
        ("during a run, kB per second, uncompressed", f"{figures['live_bytes_per_second'] / 1000:.0f}", ""),
        ("from the engine's first token to the page's, ms", "{first_token_late_ms:.0f}", goals["first_token_late_ms"]),
    ]
    views = {"rounds": "rounds", "blocks": "blocks in use", "timing": "time per step"}
    for key, name in views.items() if "redraws_per_second_rounds" in figures else ():
        for what, label in (
            (f"redraws_per_second_{key}", "redraws per second"),
            (f"lag_ms_{key}_p95", "behind the text, ms"),
        ):
            rows.append((f"during a run, {label}: {name}", f"{figures[what]:.1f}", goals[what]))
    for slowed, words in (("", "in real time"), ("slowed_", "slowed")):
        names = f"playback {words}, frames per second, without speculation", "the same with speculation"
        for way, name in zip(("off", "draft"), names, strict=True):
            key = f"player_{slowed}frames_per_second_{way}"
            rows.append((name, f"{figures[key]:.0f}", goals.get(key, "")))
    nodes = figures["nodes_after_20"] - figures["nodes_after_3"]
    rows += [
        ("DOM nodes after the 20th run, over those after the 3rd", f"{nodes:+d}", "0"),
        ("MB of memory, the same", "{heap_growth_mb:+.1f}", "0"),
        ("slower, if watched by a browser on the same two cores", slower(""), goals["slow_down"]),
        ("slower, if watched and not drawn", slower("_told"), ""),
        ("slower, beside a process that moves memory", slower("_moving_neighbour"), ""),
    ]
    lines = table(" | measured | goal", ((name, measured.format(**figures), goal) for name, measured, goal in rows))
    return [f"{found['tokens']} tokens:", "", *lines]


@generated
def workshop() -> list[str]:
    found = record("workshop-cpu")
    medians = found["percent_of_a_core"]["medians"]
    rows = {
        "idle": "idle",
        f"a presenter who moves {found['hz']:g} times per second": "leading",
        f"the same with {found['followers']} followers": "followed",
    }
    return table("server's share of a core | ", [(name, f"{medians[key]:.1f}%") for name, key in rows.items()])


def megabytes(row: Row) -> Row:
    bound = Achieved(row["share"], row["bound"]).bound or "neither"
    return row | {"mb": row["bytes"] / 1e6, "mflop": row["flops"] / 1e6, "bound": bound}


def rounds(found: Row) -> Row:
    """The record of vLLM's rounds with its rows added up."""
    rows = found["rows"]
    same, alike = (sum(row[name] for row in rows) for name in ("same_text", "alike"))
    drafter = {"draft": "draft model", "eagle3": "EAGLE-3 head"}[found.get("speculative", "draft")]
    return found | {
        "drafter": drafter,
        "prompts": len(rows),
        "same": same,
        "alike": alike,
        "of": sum(len(row["ours"]) for row in rows),
    }


CAPACITY = "{wasted_share:.0%}", "{preemptions}", "{tokens_per_second:.0f}"
block(
    "steps",
    " | MB | MFLOP | pass, ms | of the limit | bound by | whole step, ms",
    lambda: map(megabytes, record("roofline-cpu")["rows"]),
    *("{name}", "{mb:.0f}", "{mflop:.0f}", "{ms:.2f}", "{share:.0%}", "{bound}", "{step_ms:.2f}"),
)
block(
    "vllm",
    "drafter | prompts | tokens each | γ | dtype | same text | rounds that accepted as many draft tokens",
    lambda: [rounds(record(name)) for name in ("vllm-cpu", "vllm-eagle3-cpu")],
    *("{drafter}", "{prompts}", "{max_tokens}", "{gamma}", "{dtype}", "{same} of {prompts}", "{alike} of {of}"),
)
block(
    "same-memory",
    " | running, most | mean | slots reserved and not yet used | preemptions | tokens/s",
    lambda: record("serve-cpu")["memory"],
    *("{name}", "{most_sequences}", "{mean_sequences:.1f}", *CAPACITY),
)
block(
    "adaptive-gamma",
    "requests | over the best fixed γ | best | over the worst | worst",
    lambda: record("window-cpu")["ratios"],
    *("{name}", "{to_best:.2f}", "{best}", "{to_worst:.2f}", "{worst}"),
)
block(
    "drafters",
    "drafter | temperature | tokens per round | 95% over texts | accepted, place by place | c | speed-up | 95%",
    lambda: [
        row | {"by_place": " ".join("–" if one is None else f"{one:.0%}" for one in row["positions"])}
        for row in record("drafters-cpu")["rows"]
    ],
    *("{drafter}", "{temperature:g}", "{length[value]:.2f}", "{length[low]:.2f} to {length[high]:.2f}", "{by_place}"),
    *("{cost:.2f}", "{speedup[value]:.2f}", "{speedup[low]:.2f} to {speedup[high]:.2f}"),
)
block(
    "acceptance-rules",
    "rule | drafts | tokens per round | 95% over texts | accepted | from the target's distribution",
    lambda: [
        row | {"moved": f"{row['total_variation']:.1%}" if row["verified"] else "lossless"}
        for row in record("verifiers-cpu")["rows"].values()
    ],
    *("{rule}", "{draft}", "{length[value]:.2f}", "{length[low]:.2f} to {length[high]:.2f}", "{acceptance:.0%}"),
    "{moved}",
)
block(
    "api-load",
    "clients | minutes | answers | errors | longest TTFT / median | MB after warm-up | MB at the end",
    lambda: [(it := record("load-cpu")) | {"failed": len(it["errors"])}],
    *("{clients}", "{minutes:g}", "{answers}", "{failed}", "{waits_ms[ratio]:.1f}"),
    *("{memory_mb[after_warm_up]:.0f}", "{memory_mb[after]:.0f}"),
)


WORDS = {"works": "works", "refused": "refused", "differs": "writes other text", "error": "fails"}


def _works(row: Row) -> bool:
    return row["result"] == "works"


def _is_no_decoder(row: Row) -> bool:
    return row["why"].startswith("it is an encoder")


@generated
def architectures() -> list[str]:
    """What became of every causal architecture, with the reason; those with one reason share a row."""
    kinds: dict[tuple[str, str], list[str]] = {}
    rows = [row for row in record("architectures")["rows"] if row["result"] in WORDS]
    for row in rows:
        why = row["why"].replace(row["class"], "the model")
        kinds.setdefault((WORDS[row["result"]], why), []).append(row["kind"])
    ordered = sorted(kinds.items(), key=lambda item: (item[0][0] != "works", -len(item[1]), item[0]))
    lines = table(
        "architectures | | because",
        ([" ".join(f"`{kind}`" for kind in some), what, why] for (what, why), some in ordered),
    )
    works, encoders = (sum(test(row) for row in rows) for test in (_works, _is_no_decoder))
    tried = (
        f"{works} of {len(rows)} that could be built work, with transformers {record('architectures')['transformers']}."
    )
    return [f"{tried} Of the others, {encoders} have an encoder, and are no causal language models.", "", *lines]


PARITY = {
    "off": "no drafter",
    "draft": "draft model",
    "early_exit": "early exit",
    "ngram": "n-gram",
    "synthetic": "synthetic",
    "eagle3": "EAGLE-3",
    "dflash": "DFlash",
    "mtp": "MTP",
}


@generated
def parity() -> list[str]:
    """In how many kinds of cache each model writes transformers' tokens with each drafter; and why not in others."""
    found = [row for row in record("parity")["rows"] if row["cache"] not in lab.settings.KV_DTYPES]
    notes: dict[str, str] = {}

    def cell(kind: str, drafter: str) -> str:
        tried = [cells[drafter] for row in found if row["kind"] == kind and drafter in (cells := row["drafters"])]
        others = [why for it in tried if (why := it.get("refused") or it["outcome"]) != "equal"]
        marks = {notes.setdefault(why.replace(kind, "the model"), chr(ord("a") + len(notes))): 1 for why in others}
        return " ".join([f"{len(tried) - len(others)}" if len(others) < len(tried) else "–", *marks])

    lines = table(
        " | ".join(["model", "different tokens", *PARITY.values()]),
        (
            [f"`{kind}`", different, *(cell(kind, drafter) for drafter in PARITY)]
            for kind, different in {row["kind"]: row["different"] for row in found}.items()
        ),
    )
    cells = [cell for row in found for cell in row["drafters"].values()]
    equal, refused = sum(it.get("outcome") == "equal" for it in cells), sum("refused" in it for it in cells)
    return [
        f"{equal} of {len(cells) - refused} texts are equal, and {refused} pairs are refused (transformers "
        f"{record('parity')['transformers']}):",
        "",
        *lines,
        "",
        " ".join(f"{mark}: {why}." for why, mark in notes.items()),
    ]


@generated
def parity_formats() -> list[str]:
    """With how many drafters each model writes the same tokens in each quantised cache."""
    found = [row for row in record("parity")["rows"] if row["cache"] in lab.settings.KV_DTYPES]
    forms, kinds = dict.fromkeys(row["cache"] for row in found), dict.fromkeys(row["kind"] for row in found)
    outcomes = {
        (row["kind"], row["cache"]): [it["outcome"] for it in row["drafters"].values() if "outcome" in it]
        for row in found
    }
    lines = table(
        " | ".join(["model", *(f"`{form}`" for form in forms)]),
        (
            [f"`{kind}`", *(f"{it.count('equal')} of {len(it)}" for form in forms if (it := outcomes[kind, form]))]
            for kind in kinds
        ),
    )
    every, preempted = [it for some in outcomes.values() for it in some], sum(row["preempted"] for row in found)
    return [
        f"{every.count('equal')} of {len(every)} texts are equal; requests were preempted {preempted} times:",
        "",
        *lines,
    ]


# -- measurements on a GPU -----------------------------------------------------------------------

GPUS = {"h100": ("gpu-h100-early", "gpu-h100"), "h200": ("gpu-h200", "gpu-h200-first")}
"""Records of two calls of the bench on each GPU, the later one first."""
OFTEN = {"h100": "gpu-h100", "h200": "gpu-h200-first"}
"""The call that timed the pair most often."""


def part(gpu: str, number: str, key: str) -> Any:
    """One result of the bench's part ``number``, from the call that had time for the most of its rows."""
    results = (record(name)["parts"].get(number, {}).get("result", {}) for name in GPUS[gpu])
    return max((result[key] for result in results if result.get(key)), key=len)


def gpu_machine(gpu: str) -> list[str]:
    it = record(GPUS[gpu][0])["machine"]
    copies = record(GPUS[gpu][0])["parts"]["2"]["result"]["copy_gb_per_second"]
    return [
        f"One {it['accelerator']}, driver {it['driver']}, torch {it['torch'].partition('+')[0]} (CUDA {it['cuda']}), "
        f"transformers {it['transformers']}, Triton {it['triton']}, bfloat16. A copy of 512 MiB moves {copies:.0f} "
        f"GB/s, read and written. Records: {', '.join(f'[{name}](bench/{name}.json)' for name in GPUS[gpu])}."
    ]


def gpu_speculation(gpu: str) -> list[str]:
    found = part(gpu, "2", "speculation")
    rows = {(row["gamma"], row["acceptance"]): "{speedup:.2f} ({formula:.2f})".format(**row) for row in found}
    c, over = ([row[name] for row in found] for name in ("c", "measured_over_formula"))
    return [
        *table(
            "γ | acceptance 0.5 | 0.7 | 0.9",
            [(gamma, *(rows[gamma, rate] for rate in (0.5, 0.7, 0.9))) for gamma in range(1, 9)],
        ),
        "",
        f"The measured c is {min(c):.2f} to {max(c):.2f}; the speed-ups are {min(over):.2f} to {max(over):.2f} of the "
        "formula's.",
    ]


def gpu_attention(gpu: str) -> list[str]:
    cases = {(c["context"], c["batch"], c["format"], c["blocks"]): c for c in part(gpu, "3", "cases")}
    rows = []
    for context, batch in sorted({key[:2] for key in cases}):
        native = cases[context, batch, "auto", "contiguous"]
        row = [f"{context:,} x {batch}", f"{native['gb_per_second']:.0f}"]
        for other in (("auto", "paged"), ("int8", "paged"), ("int4", "paged"), ("auto", "sdpa")):
            case = cases[context, batch, *other]
            row.append(f"{case['gb_per_second']:.0f} ({case['microseconds'] / native['microseconds']:.2f})")
        rows.append(row)
    return table("context x batch | contiguous | paged | INT8 | INT4 | SDPA", rows)


def gpu_pair(gpu: str) -> list[str]:
    result = record(OFTEN[gpu])["parts"]["1"]["result"]
    often = cells(result["static"], "{name}", "{median:.0f}", QUARTILES, "{samples}")
    once = cells(result["rows"], "{name}", "{median:.0f}", "", "{samples}")
    return table(" | tokens/s | quartiles | runs", often + once)


for _gpu in GPUS:
    for _make in (gpu_machine, gpu_speculation, gpu_attention, gpu_pair):
        GENERATED[f"{_make.__name__.removeprefix('gpu_')}-{_gpu}"] = functools.partial(_make, _gpu)
    block(
        f"decode-{_gpu}",
        " | tokens/s | GB/s | of a copy | in the pass",
        functools.partial(part, _gpu, "2", "decode"),
        *("{name}", "{tokens_per_second:.1f}", "{gb_per_second:.0f}", "{of_copy:.0%}", "{of_copy_in_pass:.0%}"),
    )
    block(
        f"capacity-{_gpu}",
        " | running, most | mean | unused | preemptions | output tokens/s",
        functools.partial(part, _gpu, "4", "rows"),
        *("{name}", "{most_sequences}", "{mean_sequences:.0f}", *CAPACITY),
    )
    block(
        f"prefill-{_gpu}",
        "attention | ms | GB in use at most",
        lambda gpu=_gpu: [row | {"gb": row["peak_bytes"] / 1e9} for row in part(gpu, "2", "prefill").values()],
        *("{attention}, {layers} layers", "{milliseconds:.0f}", "{gb:.1f}"),
    )


# -- pages ---------------------------------------------------------------------------------------


def filled(page: Path) -> str:
    """The page's text with its blocks made anew. Raises KeyError for a block that no function makes."""
    root = "." if page.parent == ROOT else ".."

    def fill(found: re.Match[str]) -> str:
        lines = GENERATED[found["name"]]()
        return f"{found['start']}{chr(10).join(lines).replace('LINK/', f'{root}/')}\n{found['end']}"

    return BLOCK.sub(fill, page.read_text("utf-8"))


def main(arguments: list[str] | None = None) -> int:
    """Write the pages, or with ``--check`` name those that are not up to date."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is not up to date")
    check = parser.parse_args(arguments).check
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    old = [page for page in pages if filled(page) != page.read_text("utf-8")]
    for page in old:
        print(f"{page.relative_to(ROOT)} {'is not up to date: run `make docs`.' if check else 'was written.'}")
        if not check:
            page.write_text(filled(page), encoding="utf-8")
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
