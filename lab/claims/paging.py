"""How many requests paging lets in, and what that is worth in tokens per second."""

from __future__ import annotations

from functools import partial

from lab.claims.claim import TUTORIAL, Claim, Found, Number, Values, Verdict, percent, times
from lab.claims.together import TOPIC
from lab.claims.trial import Trial
from lab.measure.throughput import summarise
from lab.measure.workload import write
from lab.memory.capacity import Deployment, Lengths
from lab.memory.catalogue import GiB
from lab.memory.model_memory import known_models

UP_TO = 256
"""Tokens that a request says it may need, where memory is short."""
ALONE = "one after another"
RATE = "tokens_per_second"


def paging(trial: Trial) -> Found:
    # Imported here: it needs a newer transformers than everything else.
    from lab.measure.throughput import memory_rows

    engine = trial.engine("matched")
    trial.report("writing prompts, and finding out how long each answer gets")
    half, most, repeats = (3, 48, 1) if trial.small else (6, UP_TO, 2)
    rows, setting = trial.measure(lambda: memory_rows(engine, write(engine, [16] * half), most))
    contiguous_runs = rows["contiguous, the most"]
    policies = {
        ALONE: partial(contiguous_runs, max_num_seqs=1),
        "contiguous": contiguous_runs,
        "paged": rows["paged"],
    }
    samples = trial.take_turns(policies, repeats)
    contiguous, paged = (summarise(samples[name]) for name in ("contiguous", "paged"))

    def over(way: str, other: str, name: str) -> list[float]:
        return [a[name] / b[name] for a, b in zip(samples[way], samples[other], strict=True)]

    model = known_models()["llama-3.1-8b"]
    lengths = Lengths(500, 4096)
    large = Deployment(shape=model.shape, parameters=model.parameters, memory=80 * GiB, lengths=lengths)
    return Found(
        (
            Number("requests", "requests at once, in blocks for a third of them", setting["requests"]),
            Number("in_contiguous", "in flight, mean, contiguous", contiguous["mean_sequences"]),
            Number("in_paged", "in flight, mean, paged", paged["mean_sequences"]),
            Number("vain", "slots reserved, not yet used, contiguous", contiguous["wasted_share"], "%"),
            Number("vain_paged", "paged", paged["wasted_share"], "%"),
            Number.median(
                "fit", "sequences in flight, paged over contiguous", over("paged", "contiguous", "mean_sequences"), "×"
            ),
            Number.median("faster", "tokens a second, paged over contiguous", over("paged", "contiguous", RATE), "×"),
            Number.median("naive", "paged over one request after another", over("paged", ALONE, RATE), "×"),
            Number.median(
                "batching", "contiguous over one request after another", over("contiguous", ALONE, RATE), "×"
            ),
            Number(
                "large",
                "Llama 3.1 8B on 80 GB, lengths of 500 up to 4,096: fit",
                large.sequences("paged") / large.sequences("contiguous"),
                "×",
                "formula",
            ),
        ),
    )


def judge_paging(values: Values) -> Verdict:
    found = (
        f"{times(values['fit'])} as many in flight ({percent(values['vain'])} of the slots that contiguous runs "
        "reserve are not yet used, mean over steps), and "
        f"{times(values['faster'])} the tokens a second. Batching and paging together give {times(values['naive'])} "
        "over one request after another"
    )
    if values["faster"] >= 2:
        return Verdict("holds", f"{found}.")
    needs = (
        "Memory that is short, lengths that are not known, and a device on which a step of many sequences takes "
        "barely longer than one of few. Paging lets more in; whether that is faster is a matter of batching."
    )
    met = {"how many fit": values["fit"], "the speed over one request after another": values["naive"]}
    if any(ratio >= 2 for ratio in met.values()):
        for_what = " and ".join(what for what, ratio in met.items() if ratio >= 2)
        return Verdict("conditions", f"For {for_what}, not for what paging alone does to the speed: {found}.", needs)
    return Verdict("fails", f"{found}.", needs)


CLAIMS = (
    Claim(
        id="paged-throughput",
        topic=TOPIC,
        quote="vLLM with PagedAttention achieves 2–4x higher throughput than naive HuggingFace pipelines by "
        "eliminating memory waste and enabling higher batching.",
        source=TUTORIAL,
        tested=f"Requests that say “up to {UP_TO} tokens” and end when they end, in blocks for a third of them: "
        "contiguous runs for the most each may need, against blocks as they fill. Both batch continuously on one "
        "engine, so only the paging is tested. The same engine with one request after another stands for a pipeline "
        "without batching: over that, much of the factor is the batching.",
        rule="Holds if paging gives at least ×2 the tokens a second of contiguous runs. Under conditions if it has at "
        "least ×2 as many requests in flight, or at least ×2 the tokens a second of one request after another.",
        experiment=paging,
        judge=judge_paging,
    ),
)
