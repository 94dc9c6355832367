"""Many requests at once: paging, draft tokens as the batch grows, static against continuous batching, eviction."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lab.claims.claim import ClaimChart, Figures, Series
from lab.claims.trial import Trial
from lab.config import EngineConfig
from lab.engine.engine import Engine
from lab.measure.interval import Interval, median_interval, ratios
from lab.measure.throughput import Figures as Served
from lab.measure.throughput import arrivals, memory_rows, serve, summarise
from lab.measure.workload import PlannedRequest, user_requests, write
from lab.memory.capacity import Deployment, Lengths
from lab.memory.catalogue import GiB
from lab.memory.model_memory import known_models
from lab.trace.events import Admitted

PAGED = EngineConfig(paged=True)


def over(above: Sequence[Served], below: Sequence[Served], name: str = "tokens_per_second") -> Interval:
    """Median and interval of a figure's ratios, repeat by repeat."""
    return median_interval(ratios(*([one[name] for one in some] for some in (above, below))))


def paged_rows(trial: Trial, *, most: int, requests: int, repeats: int) -> tuple[dict[str, list[Served]], int]:
    """Requests of up to ``most`` tokens in blocks for a third of them: contiguous and paged, and one after another."""
    engine = trial.engine("matched")
    trial.report("writing prompts, and finding out how long each answer gets")
    half, most = (3, 48) if trial.small else (requests // 2, most)
    rows, setting = trial.measure(lambda: memory_rows(engine, write(engine, [16] * half), most))
    contiguous_runs = rows["contiguous, the most"]
    policies = {
        "alone": partial(contiguous_runs, max_num_seqs=1),
        "contiguous": contiguous_runs,
        "paged": rows["paged"],
    }
    return trial.take_turns(policies, 1 if trial.small else repeats), setting["requests"]


def paging(trial: Trial, **how: int) -> Figures:
    samples, requests = trial.once(paged_rows, **how)
    contiguous, paged = (summarise(samples[name]) for name in ("contiguous", "paged"))
    model, lengths = known_models()["llama-3.1-8b"], Lengths(500, 4096)
    large = Deployment(shape=model.shape, parameters=model.parameters, memory=80 * GiB, lengths=lengths)
    return Figures(
        {
            "requests": requests,
            "in_contiguous": contiguous["mean_sequences"],
            "in_paged": paged["mean_sequences"],
            "vain": contiguous["wasted_share"],
            "vain_paged": paged["wasted_share"],
            "fit": over(samples["paged"], samples["contiguous"], "mean_sequences"),
            "faster": over(samples["paged"], samples["contiguous"]),
            "naive": over(samples["paged"], samples["alone"]),
            "batching": over(samples["contiguous"], samples["alone"]),
            "large": large.sequences("paged") / large.sequences("contiguous"),
        }
    )


def drafting(trial: Trial, *, at_once: Sequence[int], requests: int, tokens: int, repeats: int) -> Figures:
    """Tokens per second with draft tokens over those without, by the most requests in a step."""
    engine = trial.engine("matched")
    at_once, requests, tokens = ((1, 2), 2, 16) if trial.small else (at_once, requests, tokens)
    texts = user_requests(requests, "equal", tokens, temperature=0.8, seed=1)
    configs = {"plain": PAGED, "draft": EngineConfig(paged=True, speculative="draft", num_speculative_tokens=4)}
    rows = {
        f"{most} at once, {name}": partial(serve, engine, texts, config, max_num_seqs=most)
        for most in at_once
        for name, config in configs.items()
    }
    found = trial.take_turns(rows, 1 if trial.small else repeats)
    gains = {most: over(found[f"{most} at once, draft"], found[f"{most} at once, plain"]) for most in at_once}
    series = (Series("with draft tokens", tuple(at_once), tuple(gain.value for gain in gains.values())),)
    chart = ClaimChart("lines", "requests at once", "× the throughput without", series)
    return Figures({f"at_{most}": gain for most, gain in gains.items()}, chart)


def static_batches(trial: Trial, *, requests: int, at_once: int, most: int, repeats: int) -> Figures:
    """Answers of different lengths, so many at a time: groups that end together, and whoever waits joins."""
    engine = trial.engine("matched")
    requests, at_once, most = (4, 2, 32) if trial.small else (requests, at_once, most)
    texts = user_requests(requests, "paragraph", most, temperature=0.8, seed=1)
    work = partial(serve, engine, texts, PAGED, max_num_seqs=at_once)
    found = trial.take_turns({"static": partial(work, static=True), "continuous": work}, 1 if trial.small else repeats)
    busy = {f"busy_{name}": summarise(some)["mean_sequences"] / at_once for name, some in found.items()}
    return Figures(busy | {"faster": over(found["continuous"], found["static"])}, words={"places": at_once})


def eviction(
    trial: Trial, *, requests: int, of_every: int, system: int, tokens: int, pool: Mapping[str, Any]
) -> Figures:
    """The share of system prompts' tokens that later requests find, by what is evicted first."""
    engine = trial.engine("matched")
    trial.report("writing a system prompt")
    beginning = trial.measure(lambda: write(engine, [system])[0])
    texts = user_requests(requests, "equal", tokens, temperature=0.0, seed=1, beginning=beginning, of_every=of_every)
    found = {}
    for policy in ("lru", "priority"):
        trial.begin(f"serving {requests} requests, {policy}", 1 + len(found), 2)
        found[policy] = trial.measure(partial(found_share, engine, texts, policy, dict(pool)))
    return Figures({**found, "sharing": sum(one.cache_priority for one in texts), "requests": requests})


def found_share(engine: Engine, texts: Sequence[PlannedRequest], policy: Any, pool: dict[str, int]) -> float:
    """Prompt tokens found in the cache, of the requests that share a beginning; the first of them cannot find any."""
    config = EngineConfig(paged=True, enable_prefix_caching=True, eviction=policy, num_blocks=pool["num_blocks"])
    found: dict[int, int] = {}
    for step in arrivals(engine, texts, config, every=pool["every"], max_num_seqs=pool["max_num_seqs"]):
        for entry in step.entries:
            if isinstance(entry.event, Admitted):
                found.setdefault(entry.owner, entry.event.cached_tokens)
    sharing = [i for i, one in enumerate(texts) if one.cache_priority][1:]
    sent = sum(len(engine.tokenizer(texts[i].prompt)["input_ids"]) for i in sharing)
    return sum(found[i] for i in sharing) / sent
