"""Endpoints for whoever operates a server: ``/health``, and ``/metrics`` for Prometheus.

Metrics have vLLM's names and labels where they mean the same, so that a dashboard made for one shows the other; those
that only the Lab has begin with ``decode_lab:``. Like everything else, they are counted from the engine's events: the
engine knows of a run from its turn on, and how long visitors wait for theirs is in two of the Lab's own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lab.engine.engine import Engine
from lab.trace.events import Committed, Event, Finished, Judged, Preempted, Prefilled, Proposed, RunStarted
from lab.trace.recorder import EventListener
from visualize.jobs.job_queue import JobQueue

REASONS = {"eos": "stop", "stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}
"""Why a run ended, in vLLM's words."""
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
WHOLE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)
"""Histogram bounds in seconds: vLLM's, without the longest."""


class EngineMetrics:
    """Counts what engines do. Each engine is created with a ``watch`` of its own, and then passed to ``add``."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._engines: dict[str, weakref.ref[Engine]] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(name, about, ("model_name", *labels), registry=self._registry)

        def histogram(name: str, about: str, bounds: tuple[float, ...]) -> Histogram:
            return Histogram(name, about, ("model_name",), buckets=bounds, registry=self._registry)

        self._prompt = counter("vllm:prompt_tokens", "Tokens of prompts.")
        self._generated = counter("vllm:generation_tokens", "Tokens of outputs.")
        self._queries = counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the cache.")
        self._hits = counter("vllm:prefix_cache_hits", "Prompt tokens found in the cache.")
        self._drafts = counter("vllm:spec_decode_num_drafts", "Rounds that had draft tokens.")
        self._proposed = counter("vllm:spec_decode_num_draft_tokens", "Draft tokens.")
        self._accepted = counter("vllm:spec_decode_num_accepted_tokens", "Accepted draft tokens.")
        by_position = "Accepted draft tokens by position in the round."
        self._by_position = counter("vllm:spec_decode_num_accepted_tokens_per_pos", by_position, "position")
        self._preemptions = counter("vllm:num_preemptions", "Sequences that gave their blocks back.")
        self._ended = counter("vllm:request_success", "Finished requests.", "finished_reason")
        ttft = "From a run's turn to its first token."
        self._first_token = histogram("vllm:time_to_first_token_seconds", ttft, FIRST_TOKEN)
        self._whole = histogram("vllm:e2e_request_latency_seconds", "From a run's turn to its end.", WHOLE)

    def watch(self, model: str) -> EventListener:
        """A function for ``Engine(watch=)`` that counts its events, in a few microseconds per step."""
        prompt, generated = self._prompt.labels(model), self._generated.labels(model)
        queries, hits = self._queries.labels(model), self._hits.labels(model)
        drafts, proposed = self._drafts.labels(model), self._proposed.labels(model)
        accepted, preemptions = self._accepted.labels(model), self._preemptions.labels(model)
        first_token, whole = self._first_token.labels(model), self._whole.labels(model)
        begun: dict[int, bool] = {}  # sequences without a token so far, and whether they use prefix caching

        def take(owner: int, seconds: float, event: Event) -> None:
            match event:
                case RunStarted():
                    begun[owner] = event.config["enable_prefix_caching"]
                case Prefilled() if owner in begun:
                    prompt.inc(event.tokens)
                    if begun[owner]:
                        queries.inc(event.tokens)
                        hits.inc(event.cached_tokens)
                case Proposed():
                    drafts.inc(event.position == 0)
                    proposed.inc()
                case Judged() if event.accepted:
                    accepted.inc()
                    self._by_position.labels(model, event.position).inc()
                case Committed():
                    generated.inc(len(event.token_ids))
                    if begun.pop(owner, None) is not None:
                        first_token.observe(event.t_ms / 1000)
                case Preempted():
                    preemptions.inc()
                case Finished():
                    begun.pop(owner, None)
                    self._ended.labels(model, REASONS[event.reason]).inc()
                    whole.observe(event.t_ms / 1000)

        return take

    def add(self, model: str, engine: Engine) -> None:
        """Report this engine's queues and blocks too, for as long as something else keeps it alive."""
        self._engines[model] = weakref.ref(engine)

    def collect(self) -> Iterator[Metric]:
        """The current gauges, for Prometheus's registry."""

        def gauge(name: str, about: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(name, about, labels=("model_name",))

        running = gauge("vllm:num_requests_running", "Sequences in the batch.")
        waiting = gauge("vllm:num_requests_waiting", "Sequences that wait for a place in the batch.")
        usage = gauge("vllm:kv_cache_usage_perc", "Blocks in use / all blocks.")
        for model, kept in list(self._engines.items()):
            if engine := kept():
                computed, queued = engine.counts()
                running.add_metric((model,), computed)
                waiting.add_metric((model,), queued)
                blocks = engine.occupancy()
                usage.add_metric((model,), blocks.live / max(1, sum(blocks)))
        yield from (running, waiting, usage)
        queue = self._queue
        yield GaugeMetricFamily("decode_lab:visits", "Visitors with a job in progress or waiting.", queue.inside)
        yield GaugeMetricFamily("decode_lab:waiting", "Visitors that wait for their turn.", queue.waiting)
        about = "Turns, and the seconds that visitors waited for them in all."
        yield SummaryMetricFamily("decode_lab:wait_seconds", about, queue.turns, queue.waited)

    def routes(self) -> list[Route]:
        return [Route("/health", self._health), Route("/metrics", self._metrics)]

    async def _health(self, request: Request) -> Response:
        engines = list(self._engines.items())  # others may be added meanwhile
        return JSONResponse({"status": "ok", "models": [model for model, kept in engines if kept()]})

    async def _metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)
