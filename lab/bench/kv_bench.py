"""Quality of each KV format, on texts cut into windows side by side, and the speed of decoding with it."""

import argparse
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import product

from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.errors import LabError
from lab.kv_cache.storage import formats_for
from lab.measure.interval import METHOD, ratio_interval
from lab.measure.measuring import decode, make_ready, take_turns
from lab.measure.score import kv_errors
from lab.measure.workload import held_out_prompts, longest, read_text
from lab.trace.run import Run

WINDOW = 1024
"""Tokens of a window, if the model's context is that long."""
TIMED = 64
"""Tokens that a format decodes in each timed run."""


def read_kv(args: argparse.Namespace) -> dict[str, object]:
    """The texts. Raises LabError."""
    if args.target and not args.text:
        raise LabError("the default text is held out from the embedded pair's training only: name a --text too")
    own = [(f"held-out prompt {i}", prompt) for i, prompt in enumerate(held_out_prompts(), 1)]
    texts = [(path.stem, read_text(path)) for path in args.text or ()] or own
    return {"texts": texts, "repeats": args.repeats, "exempt_ends": args.exempt_ends}


def run_kv(
    engine: Engine, texts: list[tuple[str, str]], report: Callable[[str], None], *, repeats: int, exempt_ends: bool
) -> dict[str, object]:
    """Measure every format on texts, each a title and the text itself; with ``exempt_ends`` once more with the first
    and the last layer exempt. Raises LabError: a text of fewer than two tokens."""
    length = min(WINDOW, engine.context_length)
    described, windows = [], []
    for title, text in texts:
        ids = engine.tokenizer(text, verbose=False)["input_ids"]
        if len(ids) < 2:
            raise LabError(f"{title!r} has {len(ids)} tokens; two or more are needed, one to read and one to expect.")
        described.append({"title": title, "tokens": len(ids)})
        windows += [ids[first : first + length] for first in range(0, len(ids) - 1, length)]
    prompt, tokens = engine.tokenizer.decode(windows[0][: length // 2]), min(TIMED, length // 4)

    def measured(skipped: str = "") -> list[dict[str, object]]:
        rows = kv_errors(engine, windows, report, skipped=skipped)
        speeds = decode_speeds(engine, prompt, tokens, repeats, report, skipped)
        return [asdict(row) | {"speed": speeds[row.kv_dtype]} for row in rows]

    ends = f"0 {engine.target.layers - 1}"
    return {
        "texts": described,
        "windows": len(windows),
        "window_tokens": length,
        "scored_tokens": sum(len(ids) - 1 for ids in windows),
        "intervals": METHOD,
        "formats": measured(),
        "exempt": {"kv_cache_dtype_skip_layers": ends, "formats": measured(ends)[1:]} if exempt_ends else None,
    }


def decode_speeds(
    engine: Engine, prompt: str, tokens: int, repeats: int, report: Callable[[str], None], skipped: str = ""
) -> dict[str, dict[str, object]]:
    """Decoding in every format, in turns: tokens per second, and the ratio to those of "auto", each with its interval
    over the repeats. By format, under "default", what a run takes, and "reference", torch alone: a format that no
    kernel reads has torch's time under both. ``skipped``: layers that none of them stores."""
    sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)

    def timed(form: str, kernels: str) -> float:
        config = EngineConfig(kv_dtype=form, kernels=kernels, kv_cache_dtype_skip_layers=skipped)
        return decode_ready(engine, prompt, config, sampling).metrics.tokens_per_second

    formats = formats_for(engine.target.head_dim)
    rows = {both: partial(timed, *both) for both in product(formats, ("auto", "reference"))}
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
        for form in formats
    }


def decode_ready(engine: Engine, prompt: str, config: EngineConfig, sampling: SamplingParams) -> Run:
    """A run whose block pool and step graphs are there before it begins."""
    make_ready(engine, config, longest(engine, [prompt]) + sampling.max_tokens)
    return decode(engine, prompt, config, sampling)
