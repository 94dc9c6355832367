"""Endpoints for whoever operates a server: ``/health``, and ``/metrics`` for Prometheus.

Metrics have vLLM's names and labels where they mean the same, so that a dashboard made for one shows the other; those
that only the Lab has begin with ``decode_lab:``. Like everything else, they are counted from the engine's events: the
engine knows of a run from its turn on, and how long visitors wait for theirs is in two of the Lab's own.
"""

import weakref
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lab.engine.engine import Engine
from lab.trace.events import Committed, Event, Finished, Preempted, Prefilled, Proposed, RunStarted, Verified
from lab.trace.recorder import EventListener
from visualize.jobs.job_queue import JobQueue

REASONS = {"eos": "stop", "stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}
"""Why a run ended, in vLLM's words."""
COUNTERS: dict[str, tuple[str, ...]] = {
    "prompt_tokens": ("Tokens of prompts.",),
    "generation_tokens": ("Tokens of outputs.",),
    "prefix_cache_queries": ("Prompt tokens looked up in the cache.",),
    "prefix_cache_hits": ("Prompt tokens found in the cache.",),
    "spec_decode_num_drafts": ("Rounds that had draft tokens.",),
    "spec_decode_num_draft_tokens": ("Draft tokens.",),
    "spec_decode_num_accepted_tokens": ("Accepted draft tokens.",),
    "spec_decode_num_accepted_tokens_per_pos": ("Accepted draft tokens by position in the round.", "position"),
    "num_preemptions": ("Sequences that gave their blocks back.",),
    "request_success": ("Finished requests.", "finished_reason"),
}
"""By name: what is counted, and a label beside the model's name."""
HISTOGRAMS = {
    "time_to_first_token_seconds": "From a run's turn to its first token.",
    "e2e_request_latency_seconds": "From a run's turn to its end.",
}


class EngineMetrics:
    """Counts what engines do. Each engine is created with a ``watch`` of its own, and then passed to ``add``."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._engines: dict[str, weakref.ref[Engine]] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        model, to = "model_name", {"registry": self._registry}
        self._counters = {
            name: Counter(f"vllm:{name}", about, (model, *label), **to) for name, (about, *label) in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"vllm:{name}", about, (model,), **to) for name, about in HISTOGRAMS.items()
        }

    def watch(self, model: str) -> EventListener:
        """A function for ``Engine(on_event=)`` that counts its events, in a few microseconds per step."""
        of = {name: counter.labels(model) for name, counter in self._counters.items() if len(COUNTERS[name]) == 1}
        by_position, ended = (self._counters[name] for name in COUNTERS if len(COUNTERS[name]) == 2)
        first_token, whole = (histogram.labels(model) for histogram in self._histograms.values())
        begun: dict[int, bool] = {}  # sequences without a token so far, and whether they use prefix caching

        def take(owner: int, seconds: float, event: Event) -> None:
            match event:
                case RunStarted():
                    begun[owner] = event.config["enable_prefix_caching"]
                case Prefilled() if owner in begun:
                    of["prompt_tokens"].inc(event.tokens)
                    if begun[owner]:
                        of["prefix_cache_queries"].inc(event.tokens)
                        of["prefix_cache_hits"].inc(event.cached_tokens)
                case Proposed():
                    of["spec_decode_num_drafts"].inc(event.position == 0)
                    of["spec_decode_num_draft_tokens"].inc()
                case Verified() if event.accepted:
                    of["spec_decode_num_accepted_tokens"].inc()
                    by_position.labels(model, event.position).inc()
                case Committed():
                    of["generation_tokens"].inc(len(event.token_ids))
                    if begun.pop(owner, None) is not None:
                        first_token.observe(event.t_ms / 1000)
                case Preempted():
                    of["num_preemptions"].inc()
                case Finished():
                    begun.pop(owner, None)
                    ended.labels(model, REASONS[event.reason]).inc()
                    whole.observe(event.t_ms / 1000)

        return take

    def add(self, model: str, engine: Engine) -> None:
        """Report this engine's queues and blocks too, for as long as something else keeps it alive."""
        self._engines[model] = weakref.ref(engine)

    def _there(self) -> dict[str, Engine]:
        kept = list(self._engines.items())  # others may be added meanwhile
        return {model: engine for model, reference in kept if (engine := reference())}

    def collect(self) -> Iterator[Metric]:
        """The current gauges, for Prometheus's registry."""
        gauges = [
            GaugeMetricFamily(f"vllm:{name}", about, labels=("model_name",))
            for name, about in (
                ("num_requests_running", "Sequences in the batch."),
                ("num_requests_waiting", "Sequences that wait for a place in the batch."),
                ("kv_cache_usage_perc", "Blocks in use / all blocks."),
            )
        ]
        for model, engine in self._there().items():
            blocks = engine.occupancy()
            for gauge, value in zip(gauges, (*engine.counts(), blocks.live / max(1, sum(blocks))), strict=True):
                gauge.add_metric((model,), value)
        yield from gauges
        queue = self._queue
        yield GaugeMetricFamily("decode_lab:visits", "Visitors with a job in progress or waiting.", queue.inside)
        yield GaugeMetricFamily("decode_lab:waiting", "Visitors that wait for their turn.", queue.waiting)
        about = "Turns, and the seconds that visitors waited for them in all."
        yield SummaryMetricFamily("decode_lab:wait_seconds", about, queue.turns, queue.waited)

    def routes(self) -> list[Route]:
        async def health(request: Request) -> Response:
            return JSONResponse({"status": "ok", "models": list(self._there())})

        async def metrics(request: Request) -> Response:
            return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

        return [Route("/health", health), Route("/metrics", metrics)]
