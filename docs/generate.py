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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

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


def generated(function: Callable[[], list[str]]) -> Callable[[], list[str]]:
    """Register a function that returns the lines of one block."""
    GENERATED[function.__name__.replace("_", "-")] = function
    return function


def record(name: str) -> dict[str, Any]:
    """One benchmark's record."""
    return json.loads((ROOT / f"docs/bench/{name}.json").read_text("utf-8"))


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Lines of a Markdown table."""
    cells = [list(header), *(list(row) for row in rows)]
    lines = [f"| {' | '.join(map(str, row))} |".replace("|  |", "| |") for row in cells]
    return [lines[0], f"|{' --- |' * len(cells[0])}", *lines[1:]]


def machine(name: str) -> str:
    """The machine that a record was made on, in one clause."""
    found = record(name)
    it = found["machine"]
    return (
        f"{it['torch_threads']} CPU cores ({it['processor']}), {found['dtype'].replace(', ', ' with ')}, "
        f"torch {it['torch'].partition('+')[0]}, transformers {it['transformers']}"
    )


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in rows}


def quartiles(row: dict[str, Any], digits: int = 0) -> str:
    return f"{row['lower']:.{digits}f} to {row['upper']:.{digits}f}"


@generated
def settings() -> list[str]:
    """The engine's settings (``lab/settings.py``)."""
    from lab.settings import table as rows

    return rows()


# -- README --------------------------------------------------------------------------------------


@generated
def headlines() -> list[str]:
    """Five numbers, each with its command."""
    ladder, serve, formats = record("ladder-cpu"), record("serve-cpu"), record("kv-error-cpu")
    rows, ratios = by_name(ladder["ladder"]), ladder["ratios"]
    unseen = "speculation / cache, unseen texts"
    many = serve["speculation"]["temperature 0.8"]["ratio_by_size"]["16"]
    kept = {row["kv_dtype"]: row for row in formats["formats"]}
    paged, contiguous = (serve["memory"][name]["mean_sequences"] for name in ("paged", "contiguous, the most"))
    decode = record("gpu-h200")["parts"]["2"]["result"]["decode"]["decode"]
    return table(
        ("what", "measured", "command"),
        [
            (
                f"KV cache, greedy, {ladder['max_tokens']} tokens",
                f"{rows['cache']['median']:.0f} tokens/s with it, {rows['no cache']['median']:.0f} without",
                "`python -m lab.bench ladder`",
            ),
            (
                f"Speculative decoding (draft model, γ = 4), {ladder['unseen_texts']} unseen texts",
                f"{ratios[f'{unseen}, greedy']:.2f} times the cache alone, greedy; "
                f"{ratios[f'{unseen}, temperature 0.8']:.2f} at temperature 0.8; "
                f"{many:.2f} for 16 requests at once: there it does not pay",
                "`python -m lab.bench ladder`, `serve`",
            ),
            (
                "INT8 KV cache",
                f"{kept['int8']['bytes_per_token']:,} bytes per token instead of {kept['auto']['bytes_per_token']:,}; "
                f"perplexity {kept['int8']['perplexity']:.2f} and {kept['auto']['perplexity']:.2f}",
                "`python -m lab.bench kv --text FILE`",
            ),
            (
                "Paged KV cache in the same memory",
                f"{paged:.1f} requests at once on average instead of {contiguous:.1f}",
                "`python -m lab.bench serve`",
            ),
            (
                "A model of Llama 3.1 8B's shape on an H200, one request",
                f"{decode['tokens_per_second']:.0f} tokens/s, {decode['of_copy']:.0%} of the memory bandwidth (MBU)",
                "`python -m lab.bench gpu`",
            ),
        ],
    )


@generated
def evening_path() -> list[str]:
    """The twelve files that explain the engine, with their sizes."""
    sizes = [len((ROOT / name).read_text("utf-8").splitlines()) for name in EVENING_PATH]
    links = [
        f"[{name.removeprefix('lab/').removesuffix('.py')}](LINK/{name}) {size}"
        for name, size in zip(EVENING_PATH, sizes, strict=True)
    ]
    return [f"{' · '.join(links)} ({sum(sizes):,} lines)"]


# -- measurements on a CPU -----------------------------------------------------------------------


@generated
def ladder() -> list[str]:
    rows = record("ladder-cpu")["ladder"]
    base = by_name(rows)["cache"]["median"]
    return [
        f"On {machine('ladder-cpu')}:",
        "",
        *table(
            ("", "tokens/s, median", "quartiles", "x cache"),
            [(r["name"], f"{r['median']:.0f}", quartiles(r), f"{r['median'] / base:.2f}") for r in rows],
        ),
    ]


@generated
def unseen() -> list[str]:
    found = record("ladder-cpu")
    plain, drafted, sampled, sampled_drafted = found["unseen"]

    def cell(row: dict[str, Any]) -> str:
        return f"{row['median']:.0f} ({quartiles(row)})"

    return table(
        (f"{found['unseen_texts']} unseen texts", "greedy", "temperature 0.8"),
        [
            ("cache", cell(plain), cell(sampled)),
            ("cache + speculation (γ = 4)", cell(drafted), cell(sampled_drafted)),
            ("ratio", *(f"{b['median'] / a['median']:.2f}" for a, b in ((plain, drafted), (sampled, sampled_drafted)))),
        ],
    )


@generated
def steps() -> list[str]:
    return table(
        ("", "MB", "MFLOP", "pass, ms", "of the limit", "bound by", "whole step, ms"),
        [
            (
                row["name"],
                f"{row['bytes'] / 1e6:.0f}",
                f"{row['flops'] / 1e6:.0f}",
                f"{row['ms']:.2f}",
                f"{row['share']:.0%}",
                row["bound"],
                f"{row['step_ms']:.2f}",
            )
            for row in record("roofline-cpu")["rows"]
        ],
    )


@generated
def llama_cpp() -> list[str]:
    one, two = record("llama-cpu")["rows"], record("llama-2-threads-cpu")["rows"]

    def cells(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
        base = by_name(rows)["llama.cpp, bf16"]["median"]
        return [(f"{row['median']:.0f}", quartiles(row), f"x {row['median'] / base:.2f}") for row in rows]

    named = zip([row["name"] for row in one], cells(one), cells(two), strict=True)
    same = [
        sum(length == found["max_tokens"] for length in found["alike"]["bf16"])
        for found in (record("llama-cpu"), record("llama-2-threads-cpu"))
    ]
    found = record("llama-cpu")
    return [
        *table(("", "1 thread", "", "", "2 threads", "", ""), [(name, *a, *b) for name, a, b in named]),
        "",
        f"The same {found['max_tokens']} tokens in bfloat16: {same[0]} of {found['prompts']} prompts on one thread, "
        f"{same[1]} on two.",
    ]


@generated
def vllm() -> list[str]:
    found = record("vllm-cpu")
    rows = found["rows"]
    return table(
        ("prompts", "tokens each", "γ", "dtype", "same text", "rounds that accepted as many draft tokens"),
        [
            (
                len(rows),
                found["max_tokens"],
                found["gamma"],
                found["dtype"],
                f"{sum(row['same_text'] for row in rows)} of {len(rows)}",
                f"{sum(row['alike'] for row in rows)} of {sum(len(row['ours']) for row in rows)}",
            )
        ],
    )


@generated
def many_at_once() -> list[str]:
    found = record("serve-cpu")
    return [
        *table(
            ("", "tokens/s", "TTFT p50, ms", "ITL p50 / p99, ms", "running, mean"),
            [
                (
                    name,
                    f"{row['tokens_per_second']:.0f}",
                    f"{row['ttft_p50_ms']:.0f}",
                    f"{row['itl_p50_ms']:.1f} / {row['itl_p99_ms']:.1f}",
                    f"{row['mean_sequences']:.1f}" if "mean_sequences" in row else "",
                )
                for name, row in found["throughput"].items()
            ],
        ),
        "",
        "Ratios of tokens/s: 16 of one length at once over one, "
        f"{found['ratios']['16 of one length at once / one']:.1f}; the long-tailed mix, paged, over one after "
        f"another, {found['ratios']['batched paged / one after another']:.1f}.",
    ]


@generated
def batch_size() -> list[str]:
    found = record("serve-cpu")

    def cell(size: str, temperature: str) -> str:
        off, on = (
            found["growth"][f"{size} at once, temperature {temperature}, speculation {way}"]["tokens_per_second"]
            for way in ("off", "draft")
        )
        told = found["speculation"][f"temperature {temperature}"]["told_by_size"][size]
        return f"{off:.0f}, {on:.0f}: {on / off:.2f} ({told})"

    sizes = found["speculation"]["temperature 0"]["ratio_by_size"]
    return table(
        ("requests at once", "greedy", "temperature 0.8"),
        [(size, cell(size, "0"), cell(size, "0.8")) for size in sizes],
    )


@generated
def same_memory() -> list[str]:
    return table(
        ("", "running, most", "mean", "slots reserved and not yet used", "preemptions", "tokens/s"),
        [
            (
                name,
                row["most_sequences"],
                f"{row['mean_sequences']:.1f}",
                f"{row['wasted_share']:.0%}",
                row["preemptions"],
                f"{row['tokens_per_second']:.0f}",
            )
            for name, row in record("serve-cpu")["memory"].items()
        ],
    )


@generated
def kv_formats() -> list[str]:
    found = record("kv-error-cpu")
    return [
        f"Over {found['scored_tokens']:,} tokens:",
        "",
        *table(
            ("format", "bytes per token", "error of keys", "of values", "perplexity", "KL to native, nats"),
            [
                (
                    row["kv_dtype"],
                    f"{row['bytes_per_token']:,}",
                    f"{row['key_error']:.2%}",
                    f"{row['value_error']:.2%}",
                    f"{row['perplexity']:.2f}",
                    f"{row['kl']['value']:.2g}",
                )
                for row in found["formats"]
            ],
        ),
    ]


@generated
def adaptive_gamma() -> list[str]:
    rows = record("window-cpu")["ratios"]
    return table(
        ("requests", "over the best fixed γ", "best", "over the worst", "worst"),
        [
            (kind, f"{row['to_best']:.2f}", row["best"], f"{row['to_worst']:.2f}", row["worst"])
            for kind, row in rows.items()
        ],
    )


@generated
def recording_distributions() -> list[str]:
    found = record("logprobs-cpu")
    added = found["added_ms"]
    lower = round(added["lower"], 2) + 0.0  # never -0.00
    return [
        f"The {found['logprobs']} most likely tokens around every verdict add {added['median']:.2f} ms to a round of "
        f"{found['plain_ms']:.1f} ms (quartiles {lower:.2f} to {added['upper']:.2f})."
    ]


@generated
def watching() -> list[str]:
    found = record("page-cpu")
    figures, goals = found["figures"], found["goals"]

    def player(name: str, slowed: str, way: str) -> tuple[str, str, str]:
        key = f"player_{slowed}frames_per_second_{way}"
        return name, f"{figures[key]:.0f}", goals.get(key, "")

    def slower(name: str, key: str, goal: str) -> tuple[str, str, str]:
        low, high = (100 * figures[f"slow_down{key}_{quartile}"] for quartile in ("q1", "q3"))
        return name, f"{figures[f'slow_down{key}']:.0%} ({low:.0f} to {high:.0f})", goal

    live, first = figures["live_frames_per_second"], figures["first_token_late_ms"]
    nodes = figures["nodes_after_20"] - figures["nodes_after_3"]
    return [
        f"{found['tokens']} tokens:",
        "",
        *table(
            ("", "measured", "goal"),
            [
                ("during a run, frames per second", f"{live:.1f}", goals["live_frames_per_second"]),
                ("during a run, kB per second, uncompressed", f"{figures['live_bytes_per_second'] / 1000:.0f}", ""),
                ("from the engine's first token to the page's, ms", f"{first:.0f}", goals["first_token_late_ms"]),
                player("playback in real time, frames per second, without speculation", "", "off"),
                player("the same with speculation", "", "draft"),
                player("playback slowed, frames per second, without speculation", "slowed_", "off"),
                player("the same with speculation", "slowed_", "draft"),
                ("DOM nodes after the 20th run, over those after the 3rd", f"{nodes:+d}", "0"),
                ("MB of memory, the same", f"{figures['heap_growth_mb']:+.1f}", "0"),
                slower("slower, if watched by a browser on the same two cores", "", goals["slow_down"]),
                slower("slower, if watched and not drawn", "_told", ""),
                slower("slower, beside a process that moves memory", "_moving_neighbour", ""),
            ],
        ),
    ]


@generated
def workshop() -> list[str]:
    found = record("workshop-cpu")
    medians = found["percent_of_a_core"]["medians"]
    return table(
        ("server's share of a core", ""),
        [
            ("idle", f"{medians['idle']:.1f}%"),
            (f"a presenter who moves {found['hz']:g} times per second", f"{medians['leading']:.1f}%"),
            (f"the same with {found['followers']} followers", f"{medians['followed']:.1f}%"),
        ],
    )


@generated
def api_load() -> list[str]:
    found = record("load-cpu")
    memory = found["memory_mb"]
    return table(
        ("clients", "minutes", "answers", "errors", "longest TTFT / median", "MB after warm-up", "MB at the end"),
        [
            (
                found["clients"],
                f"{found['minutes']:g}",
                found["answers"],
                len(found["errors"]),
                f"{found['waits_ms']['ratio']:.1f}",
                f"{memory['after_warm_up']:.0f}",
                f"{memory['after']:.0f}",
            )
        ],
    )


# -- measurements on a GPU -----------------------------------------------------------------------

GPUS = {"h100": ("gpu-h100-early", "gpu-h100"), "h200": ("gpu-h200", "gpu-h200-first")}
"""Records of two calls of the bench on each GPU, the later one first. A part is shown from the first that has it."""


FULL = {
    ("h100", "speculation"): "gpu-h100",
    ("h200", "speculation"): "gpu-h200",
    ("h100", "pair"): "gpu-h100",
    ("h200", "pair"): "gpu-h200-first",
}
"""The call that had time for all of a part's rows."""


def part(gpu: str, number: str, key: str) -> Any:
    """One result of the bench's part ``number``."""
    for name in GPUS[gpu]:
        result = record(name)["parts"].get(number, {}).get("result", {})
        if result.get(key):
            return result[key]
    raise KeyError(f"no record of {gpu} has {key} in part {number}")


def gpu_machine(gpu: str) -> list[str]:
    it = record(GPUS[gpu][0])["machine"]
    copies = part(gpu, "2", "copy_gb_per_second")
    return [
        f"One {it['accelerator']}, driver {it['driver']}, torch {it['torch'].partition('+')[0]} (CUDA {it['cuda']}), "
        f"transformers {it['transformers']}, Triton {it['triton']}, bfloat16. A copy of 512 MiB moves {copies:.0f} "
        f"GB/s, read and written. Records: {', '.join(f'[{name}](bench/{name}.json)' for name in GPUS[gpu])}."
    ]


def gpu_decode(gpu: str) -> list[str]:
    return table(
        ("", "tokens/s", "GB/s", "of a copy", "in the pass"),
        [
            (
                name,
                f"{row['tokens_per_second']:.1f}",
                f"{row['gb_per_second']:.0f}",
                f"{row['of_copy']:.0%}",
                f"{row['of_copy_in_pass']:.0%}",
            )
            for name, row in part(gpu, "2", "decode").items()
        ],
    )


def gpu_speculation(gpu: str) -> list[str]:
    found = record(FULL[gpu, "speculation"])["parts"]["2"]["result"]["speculation"]
    rows = {(row["gamma"], row["acceptance"]): row for row in found}
    c = [row["c"] for row in found]
    over = [row["measured_over_formula"] for row in found]

    def cell(gamma: int, rate: float) -> str:
        return f"{rows[gamma, rate]['speedup']:.2f} ({rows[gamma, rate]['formula']:.2f})"

    return [
        *table(
            ("γ", "acceptance 0.5", "0.7", "0.9"),
            [(gamma, *(cell(gamma, rate) for rate in (0.5, 0.7, 0.9))) for gamma in range(1, 9)],
        ),
        "",
        f"The measured c is {min(c):.2f} to {max(c):.2f}; the speed-ups are {min(over):.2f} to {max(over):.2f} of the "
        "formula's.",
    ]


def gpu_attention(gpu: str) -> list[str]:
    cases = {(c["context"], c["batch"], c["format"], c["blocks"]): c for c in part(gpu, "3", "cases")}
    others = ("auto", "paged"), ("int8", "paged"), ("int4", "paged"), ("auto", "sdpa")
    rows = []
    for context, batch in sorted({key[:2] for key in cases}):
        native = cases[context, batch, "auto", "contiguous"]
        cells = [f"{context:,} x {batch}", f"{native['gb_per_second']:.0f}"]
        for other in others:
            case = cases[context, batch, *other]
            cells.append(f"{case['gb_per_second']:.0f} ({case['microseconds'] / native['microseconds']:.2f})")
        rows.append(cells)
    return table(("context x batch", "contiguous", "paged", "INT8", "INT4", "SDPA"), rows)


def gpu_capacity(gpu: str) -> list[str]:
    return table(
        ("", "running, most", "mean", "unused", "preemptions", "output tokens/s"),
        [
            (
                name,
                row["most_sequences"],
                f"{row['mean_sequences']:.0f}",
                f"{row['wasted_share']:.0%}",
                row["preemptions"],
                f"{row['tokens_per_second']:.0f}",
            )
            for name, row in part(gpu, "4", "rows").items()
        ],
    )


def gpu_prefill(gpu: str) -> list[str]:
    return table(
        ("attention", "ms", "GB in use at most"),
        [
            (f"{r['attention']}, {r['layers']} layers", f"{r['milliseconds']:.0f}", f"{r['peak_bytes'] / 1e9:.1f}")
            for r in part(gpu, "2", "prefill").values()
        ],
    )


def gpu_pair(gpu: str) -> list[str]:
    result = record(FULL[gpu, "pair"])["parts"]["1"]["result"]
    often, once = result["static"], result["rows"]
    [samples] = {row["samples"] for row in often.values()}
    return table(
        ("", "tokens/s", "quartiles", "runs"),
        [
            *((name, f"{row['median']:.0f}", quartiles(row), samples) for name, row in often.items()),
            *((name, f"{row['median']:.0f}", "", row["samples"]) for name, row in once.items()),
        ],
    )


for _gpu in GPUS:
    for _make in (gpu_machine, gpu_decode, gpu_speculation, gpu_attention, gpu_capacity, gpu_prefill, gpu_pair):
        GENERATED[f"{_make.__name__.removeprefix('gpu_')}-{_gpu}"] = functools.partial(_make, _gpu)


# -- pages ---------------------------------------------------------------------------------------


def pages() -> list[Path]:
    """Every page that may have generated blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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
    old = [page for page in pages() if filled(page) != page.read_text("utf-8")]
    for page in old:
        print(f"{page.relative_to(ROOT)} {'is not up to date: run `make docs`.' if check else 'was written.'}")
        if not check:
            page.write_text(filled(page), encoding="utf-8")
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
