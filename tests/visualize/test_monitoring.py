"""A server's metrics: counted from the events, under vLLM's names."""

from __future__ import annotations

import gc
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.testclient import TestClient

from lab import Engine, EngineConfig, SamplingParams
from lab.trace.events import Committed, Finished, Preempted, Prefilled, Proposed, Verified
from lab.vllm.server_metrics import GENERATED, MetricsError, parse
from tests.tiny_models import engine as tiny_engine
from tests.visualize.conftest import script
from tests.waiting import until
from visualize.jobs.job_queue import JobQueue
from visualize.prometheus import REASONS, EngineMetrics

PROMPT = "Once upon a time there was a fox"


class Server:
    """A monitor of one engine, queried over HTTP."""

    def __init__(self) -> None:
        self.queue = JobQueue()
        self.monitor = EngineMetrics(self.queue)
        self._client = TestClient(Starlette(routes=self.monitor.routes()))

    def engine(self, draft: str | None = None) -> Engine:
        engine = tiny_engine(draft=draft, on_event=self.monitor.watch("tiny"))
        self.monitor.add("tiny", engine)
        return engine

    def health(self) -> dict:
        return self._client.get("/health").json()

    def page(self) -> str:
        answer = self._client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return answer.text

    def metrics(self) -> dict[str, float]:
        """By name and labels, as Prometheus reads them."""
        return {
            " ".join([sample.name, *sample.labels.values()]): sample.value
            for family in text_string_to_metric_families(self.page())
            for sample in family.samples
        }


@pytest.fixture
def server() -> Server:
    return Server()


def test_the_metrics_count_what_happened(server: Server) -> None:
    engine = server.engine("good")
    paged = EngineConfig(paged=True, block_size=8, enable_prefix_caching=True, speculative="draft")
    greedy = SamplingParams(max_tokens=24, temperature=0.0)
    runs = [engine.generate(PROMPT, paged, greedy) for _ in range(2)]
    runs.append(engine.generate(PROMPT, EngineConfig(), greedy))
    reported = server.metrics()
    cached, _ = (run.metrics.cached_prompt_tokens for run in reversed(runs[:2]))
    assert cached > 0
    prompt = len(runs[0].started.prompt_token_ids)
    events = [event for run in runs for event in run.events]
    proposals = [event for event in events if isinstance(event, Proposed)]
    kept = [event.position for event in events if isinstance(event, Verified) and event.accepted]
    rounds = sum(event.position == 0 for event in proposals)
    assert kept
    expected = {
        "vllm:prompt_tokens_total tiny": 3 * prompt,
        "vllm:generation_tokens_total tiny": sum(len(run.token_ids) for run in runs),
        "vllm:prefix_cache_queries_total tiny": 2 * prompt,
        "vllm:prefix_cache_hits_total tiny": cached,
        "vllm:spec_decode_num_drafts_total tiny": rounds,
        "vllm:spec_decode_num_draft_tokens_total tiny": len(proposals),
        "vllm:spec_decode_num_accepted_tokens_total tiny": len(kept),
        "vllm:spec_decode_num_accepted_tokens_per_pos_total tiny 0": kept.count(0),
        f"vllm:request_success_total {REASONS[runs[0].reason]} tiny": 3,
        "vllm:num_requests_running tiny": 0,
        "vllm:num_requests_waiting tiny": 0,
        "vllm:kv_cache_usage_perc tiny": 0,
        "vllm:time_to_first_token_seconds_count tiny": 3,
        "vllm:e2e_request_latency_seconds_count tiny": 3,
    }
    assert {name: reported[name] for name in expected} == expected
    mean = sum(run.metrics.ttft_ms for run in runs) / 1000
    assert reported["vllm:time_to_first_token_seconds_sum tiny"] == pytest.approx(mean)


def test_a_sequence_that_had_to_wait_again_is_counted_once(server: Server) -> None:
    take, events = server.monitor.watch("tiny"), script(EngineConfig(enable_prefix_caching=True, paged=True), 3)
    read, at = (
        next((i for i, event in enumerate(events) if isinstance(event, kind))) for kind in (Prefilled, Committed)
    )
    preempted = Preempted(t_ms=events[at].t_ms, tokens=9)
    for event in [*events[: at + 1], preempted, events[read], *events[at + 1 :]]:
        take(7, 0.0, event)
    reported = server.metrics()
    assert reported["vllm:num_preemptions_total tiny"] == 1
    assert reported["vllm:prompt_tokens_total tiny"] == events[read].tokens
    assert reported["vllm:time_to_first_token_seconds_count tiny"] == 1
    assert reported["vllm:e2e_request_latency_seconds_sum tiny"] == pytest.approx(events[-1].t_ms / 1000)


def test_how_runs_end_is_said_in_vllms_words(server: Server) -> None:
    take = server.monitor.watch("tiny")
    for reason in ("eos", "stop", "length", "cancelled", "error"):
        take(0, 0.0, Finished(t_ms=1.0, reason=reason, text="", message=""))
    reported = server.metrics()
    words = {"stop": 2, "length": 1, "abort": 1, "error": 1}
    assert {word: reported[f"vllm:request_success_total {word} tiny"] for word in words} == words


def test_another_lab_learns_that_nothing_was_decoded_yet_and_then_what_was(server: Server) -> None:
    with pytest.raises(MetricsError, match="no value of any so far"):
        parse(server.page(), at=0.0)
    run = server.engine().generate(PROMPT, EngineConfig(), SamplingParams(max_tokens=4))
    assert parse(server.page(), at=1.0).values[GENERATED] == len(run.token_ids)


def test_who_waits_for_a_turn_is_counted_and_for_how_long(server: Server) -> None:
    """A wait before the turn is in no metric of an engine, which does not know of it."""
    going = threading.Event()

    def wait() -> None:
        with server.queue.turn("second", threading.Event()):
            going.set()

    with server.queue.turn("first", threading.Event()):
        assert server.metrics()["decode_lab:waiting"] == 0
        second = threading.Thread(target=wait)
        second.start()
        until(lambda: server.metrics()["decode_lab:waiting"] == 1)
        assert not going.wait(0.2)
    second.join()
    reported = server.metrics()
    assert (reported["decode_lab:waiting"], reported["decode_lab:wait_seconds_count"]) == (0, 2)
    assert 0.2 <= reported["decode_lab:wait_seconds_sum"] < 60


def test_all_is_reported_while_an_engine_is_added(server: Server) -> None:
    """Which another thread does, at any moment."""
    kept = [server.engine()]

    class AtAnyMoment:
        def __call__(self) -> Engine:
            server.monitor.add(f"another, {len(server.monitor._engines)}", kept[0])
            return kept[0]

    server.monitor._engines["tiny"] = AtAnyMoment()
    assert server.health()["models"] == ["tiny"]
    assert server.metrics()["vllm:kv_cache_usage_perc tiny"] == 0, "it has no pool yet"


def test_the_gauges_show_a_run_under_way(server: Server) -> None:
    engine = server.engine()
    with server.queue.visit(object()):
        events = engine.stream(PROMPT, EngineConfig(paged=True, num_blocks=16), SamplingParams(max_tokens=99, seed=1))
        while not isinstance(next(events), Committed):
            pass
        reported = server.metrics()
        assert reported["vllm:num_requests_running tiny"] == 1
        assert 0 < reported["vllm:kv_cache_usage_perc tiny"] < 1
        assert reported["decode_lab:visits"] == 1
        events.close()
    reported = server.metrics()
    assert reported["vllm:request_success_total abort tiny"] == 1
    assert reported["vllm:kv_cache_usage_perc tiny"] == reported["decode_lab:visits"] == 0


def test_an_engine_that_is_gone_disappears_from_the_metrics(server: Server) -> None:
    engine = server.engine()
    assert server.health() == {"status": "ok", "models": ["tiny"]}
    del engine
    gc.collect()
    assert server.health() == {"status": "ok", "models": []}
    assert "vllm:num_requests_running tiny" not in server.metrics()
