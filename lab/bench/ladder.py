"""The ladder: each toggle's effect on speed, beside transformers' own generation, all on the same weights.

Within a repeat all rows take turns on a prompt before the next prompt begins. A figure is the median over prompts and
repeats of output tokens / wall time of the whole call, prefill included, with its quartiles.

The ladder itself is greedy, and a small model that decodes greedily soon repeats itself, which is easy to draft. So
speculation is also timed on the beginnings of texts that the embedded pair has not seen, greedily and with sampling.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from lab.bench.output import spread
from lab.config import EngineConfig, SamplingParams
from lab.engine.engine import Engine
from lab.measure.measuring import refuse_failure, shuffled
from lab.measure.workload import PROMPTS, held_out_prompts, refuse_cut
from lab.trace.events import Committed, Event, FellBack, Finished, RunStarted
from lab.trace.recorder import Recorder

GAMMAS = (1, 2, 3, 4, 6, 8)
UNSEEN_GAMMA, TEMPERATURE = 4, 0.8
"""Of the rows on unseen texts: chosen beforehand, the lab's defaults."""
BY_TORCH = EngineConfig(kernels="reference")
"""The configuration whose models have transformers' own layers."""
UNIT = "output tokens per second, whole call, median and quartiles"
CACHE, STOCK, ASSISTED = "cache", "transformers generate", "transformers assisted generation"

Generate = Callable[[str], int]
"""Decodes a prompt; returns how many tokens came out."""


def drafting(gamma: int) -> EngineConfig:
    return EngineConfig(speculative="draft", num_speculative_tokens=gamma)


def speculation(gamma: int) -> str:
    """The name of the rung."""
    return f"cache + speculation (gamma {gamma})"


def ladder_configs(gamma: int) -> dict[str, EngineConfig]:
    """The rungs: no cache, the cache, then one more lever at a time beside it, then all of them."""
    every = EngineConfig(kv_dtype="int8", paged=True, speculative="draft", num_speculative_tokens=gamma)
    return {
        "no cache": EngineConfig(kv_cache=False),
        CACHE: EngineConfig(),
        "cache + INT8": EngineConfig(kv_dtype="int8"),
        "cache + paged": EngineConfig(paged=True),
        speculation(gamma): drafting(gamma),
        f"all (gamma {gamma})": every,
    }


def run_ladder(engine: Engine, max_tokens: int, repeats: int, report: Callable[[str], None]) -> dict[str, object]:
    """Find the best gamma; time the ladder with it, and transformers' own generation, plain and assisted. Raises
    LabError: more tokens than the context leaves, a run failed, or part of its setting was given up."""
    unseen = held_out_prompts()
    refuse_cut(engine, (*PROMPTS, *unseen), max_tokens)
    lab = partial(lab_generate, engine, sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    report("Which gamma is best here?")
    sweep = {"no speculation": lab(EngineConfig())} | {f"gamma {gamma}": lab(drafting(gamma)) for gamma in GAMMAS}
    gammas = time_rows(engine, sweep, PROMPTS, repeats, report)
    best = max(gammas[1:], key=lambda row: row["median"])
    gamma = int(best["name"].split()[1])

    report(f"The ladder, with gamma {gamma}:")
    rows: dict[str, Generate] = {name: lab(config) for name, config in ladder_configs(gamma).items()}
    if engine.computes_by_kernels:
        rows["cache, steps by torch"] = lab(EngineConfig(kernels="reference"))
    rows["cache, nothing recorded"] = _unrecorded(rows[CACHE])
    rows[STOCK], rows[ASSISTED] = stock_generate(engine, max_tokens), stock_generate(engine, max_tokens, gamma)
    ladder = time_rows(engine, rows, PROMPTS, repeats, report)

    report(f"Speculation on {len(unseen)} unseen texts:")
    others: dict[str, Generate] = {}
    for name, temperature in (("greedy", 0.0), (f"temperature {TEMPERATURE:g}", TEMPERATURE)):
        sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=0, ignore_eos=True)
        others[f"{name}, cache"] = lab_generate(engine, EngineConfig(), sampling)
        others[f"{name}, speculation (gamma {UNSEEN_GAMMA})"] = lab_generate(engine, drafting(UNSEEN_GAMMA), sampling)
    unseen_rows = time_rows(engine, others, unseen, repeats, report)
    greedy, greedy_drafted, drawn, drafted = (row["median"] for row in unseen_rows)
    medians = {row["name"]: row["median"] for row in ladder}
    speculative = medians[speculation(gamma)]
    return {
        "prompts": len(PROMPTS),
        "unit": UNIT,
        "gammas": gammas,
        "best_gamma": gamma,
        "ladder": ladder,
        "unseen_texts": len(unseen),
        "unseen": unseen_rows,
        "ratios": {
            "speculation at its best gamma / without, in the sweep": best["median"] / gammas[0]["median"],
            "speculation / cache, in the ladder": speculative / medians[CACHE],
            "speculation / cache, unseen texts, greedy": greedy_drafted / greedy,
            f"speculation / cache, unseen texts, temperature {TEMPERATURE:g}": drafted / drawn,
            "cache / the same with nothing recorded": medians[CACHE] / medians["cache, nothing recorded"],
            "cache / transformers generate": medians[CACHE] / medians[STOCK],
            "speculation / transformers assisted": speculative / medians[ASSISTED],
        },
    }


def time_rows(
    engine: Engine, rows: dict[str, Generate], prompts: Sequence[str], repeats: int, report: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Time every row on every prompt ``repeats`` times, interleaved. Each row: its ``name``, and the ``spread`` of its
    output tokens per second over the calls."""
    rates: dict[str, list[float]] = {name: [] for name in rows}
    # To warm up; not counted. A last, shorter window has its own CUDA graph, and the prompt decides which.
    for prompt in prompts if engine.cuda_graphs else prompts[:1]:
        for name in rows:
            timed(engine, name, rows[name], prompt)
    orders = shuffled(rows, repeats * len(prompts))
    for repeat in range(repeats):
        for prompt in prompts:
            for name in next(orders):
                tokens, seconds = timed(engine, name, rows[name], prompt)
                rates[name].append(tokens / seconds)
        report(f"  repeat {repeat + 1} of {repeats} done")
    return [{"name": name, **spread(values)} for name, values in rates.items()]


def timed(engine: Engine, name: str, generate: Generate, prompt: str) -> tuple[int, float]:
    """Tokens, and the seconds they took. Plugging transformers' own attention in and out is not timed."""
    models = engine.models(BY_TORCH) if name.startswith("transformers") else ()
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(model.stock_attention())
        began = time.perf_counter()
        tokens = generate(prompt)
        if engine.device.startswith("cuda"):
            torch.cuda.synchronize(engine.device)
        return tokens, time.perf_counter() - began


def lab_generate(engine: Engine, config: EngineConfig, sampling: SamplingParams) -> Generate:
    """The engine's own way. It raises LabError where a run fails, or goes on without part of its setting."""

    def generate(prompt: str) -> int:
        run = engine.generate(prompt, config, sampling)
        refuse_failure(run, engine)
        return len(run.token_ids)

    return generate


def _unrecorded(generate: Generate) -> Generate:
    """The same, making no events but those that give the tokens or report a failure."""

    def silent(prompt: str) -> int:
        emit = Recorder.emit

        def emit_few(recorder: Recorder, event_type: type[Event], **fields: Any) -> None:
            if event_type in (RunStarted, Committed, FellBack, Finished):
                emit(recorder, event_type, **fields)

        Recorder.emit = emit_few
        try:
            return generate(prompt)
        finally:
            Recorder.emit = emit

    return silent


def stock_generate(
    engine: Engine, max_tokens: int, gamma: int | None = None, cache_implementation: str | None = None
) -> Generate:
    """transformers' ``generate`` with its dynamic cache or another; with ``gamma``: its assisted generation."""
    target, draft = engine.models(BY_TORCH)

    def generate(prompt: str) -> int:
        ids = engine.tokenizer(prompt, return_tensors="pt").input_ids.to(engine.device)
        options: dict[str, object] = {}
        if gamma is not None:
            # The same window every round, as in the lab: without transformers' schedule and its early stop.
            settings = draft.model.generation_config
            settings.num_assistant_tokens = gamma
            settings.num_assistant_tokens_schedule = "constant"
            settings.assistant_confidence_threshold = 0.0
            options["assistant_model"] = draft.model
        with torch.inference_mode():
            output = target.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=engine.tokenizer.eos_token_id,
                cache_implementation=cache_implementation,
                **options,
            )
        return output.shape[1] - ids.shape[1]

    return generate
