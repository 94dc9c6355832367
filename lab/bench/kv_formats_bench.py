"""``python -m lab.bench kv``: the error of each KV format, on texts cut into windows side by side."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict

from lab.bench.output import about
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.measure.interval import METHOD, MIN_SAMPLES, Interval
from lab.measure.kv_error import kv_errors
from lab.measure.workload import held_out_prompts, read_text

WINDOW = 1024
"""Tokens of a window, if the model's context is that long."""


def read_kv(args: argparse.Namespace) -> dict[str, object]:
    """The texts. Raises LabError."""
    if args.target and not args.text:
        raise LabError("the default text is held out from the embedded pair's training only: name a --text too")
    own = [(f"held-out prompt {i}", prompt) for i, prompt in enumerate(held_out_prompts(), 1)]
    return {"texts": [(path.stem, read_text(path)) for path in args.text or ()] or own}


def run_kv(engine: Engine, texts: list[tuple[str, str]], report: Callable[[str], None]) -> dict[str, object]:
    """Measure every format on texts, each a title and the text itself.

    Raises:
        LabError: a text of fewer than two tokens.
    """
    length = min(WINDOW, engine.context_length)
    described, windows = [], []
    for title, text in texts:
        ids = engine.tokenizer(text, verbose=False)["input_ids"]
        if len(ids) < 2:
            raise LabError(f"{title!r} has {len(ids)} tokens; two or more are needed, one to read and one to expect.")
        described.append({"title": title, "tokens": len(ids)})
        windows += [ids[first : first + length] for first in range(0, len(ids) - 1, length)]
    rows = kv_errors(engine, windows, report)
    return about(engine, draft=False) | {
        "texts": described,
        "windows": len(windows),
        "window_tokens": length,
        "scored_tokens": sum(len(ids) - 1 for ids in windows),
        "intervals": METHOD,
        "formats": [asdict(row) for row in rows],
    }


def format_kv(result: dict) -> str:
    sure = "intervals are 95%" if result["windows"] >= MIN_SAMPLES else f"an interval takes {MIN_SAMPLES} windows"
    titles = ", ".join(f"{text['title']} ({text['tokens']:,} tokens)" for text in result["texts"][:5])
    more = f" and {len(result['texts']) - 5} more" if len(result["texts"]) > 5 else ""
    lines = [
        f"{result['scored_tokens']:,} tokens scored in {result['windows']} windows: {titles}{more}",
        f"auto is {result['dtype']}; {sure}",
        "",
        f"{'':6}bytes per token  smaller  keys off  values off  perplexity  {'x auto':30}KL from auto, nats per token",
    ]
    for row in result["formats"]:
        ratio, kl = Interval(**row["perplexity_ratio"]), Interval(**row["kl"])
        lines.append(
            f"{row['kv_dtype']:6}{row['bytes_per_token']:15,}{row['bytes_ratio']:8.2f}x{row['key_error']:10.3%}"
            f"{row['value_error']:12.3%}{row['perplexity']:12.3f}  {ratio!s:30}{kl}"
        )
    return "\n".join(lines)
