"""A vLLM server being watched: its readings as messages for everyone, and prompts whose answers can be stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.config import SamplingParams
from lab.vllm.client import Server, ServerError
from lab.vllm.completion import CompletionEnd, ReportedRounds
from lab.vllm.server_metrics import (
    ACCEPTED,
    COUNTERS,
    DRAFTED,
    DRAFTS,
    GENERATED,
    HITS,
    KV_USAGE,
    QUERIED,
    RUNNING,
    WAITING,
    ServerMetrics,
)
from tests.coroutines import complete
from tests.visualize.picture import apply
from tests.vllm.scripted_vllm import WORDS, ScriptedVLLM, serving
from tests.waiting import until
from visualize.charts import server_charts as figures
from visualize.jobs.job_queue import JobQueue
from visualize.jobs.sse_channel import Channel
from visualize.pages.server import remote_run as remote
from visualize.pages.server.remote_run import CUT_SHORT, NO_ROUND, NOT_TOLD, Prompts, RemotePrompt, ServerWatch
from visualize.pages.server.watched import ServerReducer
from visualize.reduce.metric_cards import LABELS

HOSTILE = "<img src=x onerror=window.pwned=1>\u202e"
GAUGES = {KV_USAGE: 0.25, RUNNING: 3.0, WAITING: 2.0}


def reading(at: float, times: int, **more: Any) -> ServerMetrics:
    """Gauges, and counters after this many equal steps."""
    step = {GENERATED: 100, QUERIED: 80, HITS: 60, DRAFTS: 10, DRAFTED: 40, ACCEPTED: 25}
    counters = dict.fromkeys(COUNTERS, 0.0) | {name: value * times for name, value in step.items()}
    return ServerMetrics(at, GAUGES | counters, tuple(times * count for count in (9, 8, 5, 3)), **more)


def test_readings_become_numbers_lines_and_bars() -> None:
    reducer = ServerReducer("http://host", began=100.0)
    first = reducer.take(reading(101.0, 1), ["tiny"])
    assert first["readouts"]["speed"] == ["–", "", ""]
    second = reducer.take(reading(103.0, 2), ["tiny"])
    values = {key: row[0] for key, row in second["readouts"].items()}
    assert values == {
        "usage": "25",
        "running": "3",
        "waiting": "2",
        "speed": "50",
        "hits": "75",
        "length": "3.50",
        "kept": "62",
        "preempted": "0",
    }
    assert set(values) == set(LABELS["server"])
    assert second["points"]["queue"] == [[0, None, {"x": 3.0, "y": 3.0}], [1, None, {"x": 3.0, "y": 2.0}]]
    assert second["points"]["speed"] == [[0, None, {"x": 3.0, "y": 50.0}]]
    assert second["charts"]["acceptance"]["columns"] == [{"x": [1, 2, 3, 4], "y": [0.9, 0.8, 0.5, 0.3]}]
    assert "problem" not in second
    assert second["layout"]["speed"]["yaxis.range"][1] >= 50
    reducer.take(ServerMetrics(104.0, reading(104.0, 3).values | {WAITING: 70.0}), ["tiny"])
    after = reducer.take(reading(105.0, 4), ["tiny"])
    assert after["layout"]["queue"]["yaxis.range"][1] > 70, "it is still in view"


def test_a_restart_and_a_lost_connection_are_reported_and_leave_a_gap() -> None:
    reducer = ServerReducer("http://host", began=0.0)
    reducer.take(reading(1.0, 5, started=1.0), ["tiny"])
    again = reducer.take(reading(2.0, 1, started=2.0), ["tiny"])
    assert again["say"].startswith("The counters did not go on: the server was restarted, or several servers answer")
    assert again["points"]["speed"][0][2]["y"] is None
    assert again["charts"]["acceptance"]["columns"] == [{"x": [], "y": []}]
    goes_on = reducer.take(reading(2.5, 2, started=2.0), ["tiny"])
    assert goes_on["readouts"]["hits"] == ["75", "%", "last minute"]  # of what came after the restart
    gone = reducer.lost(3.0, f"No connection {HOSTILE}.")
    assert gone["problem"]
    assert "⟨RLO⟩" in gone["say"]
    assert gone["points"]["queue"] == [[0, None, {"x": 3.0, "y": None}], [1, None, {"x": 3.0, "y": None}]]
    back = reducer.take(reading(9.0, 9, started=2.0), ["tiny"])
    assert back["points"]["speed"][0][2]["y"] is None  # no rate across the gap
    assert "restarted" not in back["say"]


def test_servers_that_answer_in_turn_at_one_address_have_no_speed() -> None:
    """As behind a load balancer: what one has generated since its start is not what happened in a second."""
    reducer = ServerReducer("http://host", began=0.0)
    for second in range(1, 9):
        of_one = second % 2
        said = reducer.take(reading(second, 1_000_000 + 100_000 * of_one + second, started=float(of_one)), ["tiny"])
        assert said["points"]["speed"][0][2]["y"] is None
        assert ("in turn" in said["say"]) == (second > 1)


def test_metrics_missing_from_the_server_are_reported() -> None:
    said = ServerReducer("http://host", 0.0).take(ServerMetrics(1.0, {RUNNING: 1.0, DRAFTS: 0.0}), [])["say"]
    assert "lack vllm:kv_cache_usage_perc" in said
    whole = {name: 0.0 for name in (*GAUGES, *COUNTERS) if name not in (DRAFTS, DRAFTED, ACCEPTED)}
    said = ServerReducer("http://host", 0.0).take(ServerMetrics(1.0, whole), [HOSTILE, "tiny"])["say"]
    assert said.startswith("http://host serves <img src=x onerror=window.pwned=1>⟨RLO⟩ and others.")
    assert said.endswith("It does not speculate, so there are no draft tokens to report.")


@given(st.lists(st.one_of(st.none(), st.integers(0, 2**62)), min_size=1, max_size=20))
def test_every_message_is_finite_and_fits_its_charts(steps: list[int | None]) -> None:
    reducer = ServerReducer("http://host", began=0.0)
    columns = {name: [{"x": [], "y": []} for _ in range(lines)] for name, lines in figures.LINES.items()}
    for second, times in enumerate(steps):
        at = 30.0 * second + 1
        message = reducer.lost(at, "gone") if times is None else reducer.take(reading(at, times), ["tiny"])
        json.loads(json.dumps(message, allow_nan=False))
        for name, patches in message["points"].items():
            apply(columns[name], patches)
            low, high = message["layout"][name]["xaxis.range"]
            assert high - low >= figures.FIRST
            assert math.isclose(high, max(at, figures.FIRST))
    assert all(len(trace["x"]) == len(steps) for name in figures.LINES for trace in columns[name])


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20))
def test_rounds_are_drawn_like_the_labs_own(pairs: list[tuple[int, int]]) -> None:
    drafted, accepted = [max(pair) for pair in pairs], [min(pair) for pair in pairs]
    chart = figures.reported_rounds(ReportedRounds(tuple(drafted), tuple(accepted)))
    count = dict(zip(figures.rounds.TRACES, [len(trace["x"]) for trace in chart["columns"]], strict=True))
    assert count["accepted"] == sum(accepted)
    assert count["rejected"] == count["recovered"] == sum(a < d for d, a in zip(drafted, accepted, strict=True))
    assert count["bonus"] + count["recovered"] == len(pairs)
    assert count["accepted"] + count["rejected"] + count["unjudged"] == sum(drafted)
    assert count["plain"] == 0


@pytest.mark.parametrize(
    ("end", "say", "rounds"),
    [
        (CompletionEnd("length", 5, 1, ReportedRounds((), ())), "Answered: 1 token, prompt 5. It reached", NO_ROUND),
        (CompletionEnd("stop", 5, 1200, None), "Answered: 1,200 tokens, prompt 5. It ended by itself.", NOT_TOLD),
        (CompletionEnd("abort", 5, 12, None), "prompt 5. The server ended it (abort).", NOT_TOLD),
        (CompletionEnd("\u202e", None, None, ReportedRounds((4,), (2,))), "Answered. The server ended", "1 round"),
        (
            CompletionEnd("", None, None, ReportedRounds((4, 4), (2, 3))),
            "Answered.",
            "2 rounds with draft tokens",
        ),
    ],
)
def test_how_an_answer_ended_is_reported(end: CompletionEnd, say: str, rounds: str) -> None:
    reported = remote._final_message(end, most=4)
    assert say in reported["say"]
    assert "\u202e" not in reported["say"]
    assert rounds in reported["rounds"]


@pytest.fixture
def vllm() -> ScriptedVLLM:
    return ScriptedVLLM()


@pytest.fixture
def server(vllm: ScriptedVLLM) -> Iterator[Server]:
    with serving(vllm) as address:
        yield Server(address)


def heard(channel: Channel) -> list[dict[str, Any]]:
    """All messages of a channel until its end."""

    async def listen() -> list[dict[str, Any]]:
        return [json.loads(message) async for _, message in channel.read()]

    return complete(listen())


def test_one_thread_reads_for_all_and_resumes_when_the_server_is_back(
    server: Server, vllm: ScriptedVLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "EVERY_S", 0.02)
    queue = JobQueue()
    watch = ServerWatch(server, queue)
    until(lambda: vllm.asked.count("/metrics") >= 3)
    vllm.wrong["/metrics"] = "html"
    until(lambda: not watch.models)
    vllm.wrong.clear()
    until(lambda: watch.models)
    queue.close(0)
    messages = heard(watch.channel)
    problems = [bool(message.get("problem")) for message in messages]
    assert problems[0] is problems[-1] is False
    assert any(problems)
    assert vllm.asked.count("/v1/models") == 2


@pytest.mark.parametrize("later", [60, -60])
def test_a_server_that_is_another_from_one_reading_to_the_next_is_asked_what_it_serves(
    server: Server, vllm: ScriptedVLLM, monkeypatch: pytest.MonkeyPatch, later: float
) -> None:
    """Began later, or earlier, as the next of several that answer in turn."""
    monkeypatch.setattr(remote, "EVERY_S", 0.02)
    queue = JobQueue()
    watch = ServerWatch(server, queue)
    until(lambda: watch.models == (vllm.model,))
    vllm.model = "another"
    vllm.started += later
    until(lambda: watch.models == ("another",))
    queue.close(0)
    assert not any(message.get("problem") for message in heard(watch.channel))


def test_metrics_are_read_even_if_models_cannot_be(
    server: Server, vllm: ScriptedVLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "EVERY_S", 0.02)
    vllm.wrong["/v1/models"] = "key"
    queue = JobQueue()
    watch = ServerWatch(server, queue)
    until(lambda: vllm.asked.count("/metrics") >= 2)
    queue.close(0)
    message = heard(watch.channel)[0]
    assert message["readouts"]["usage"][0] == "25"
    assert "VLLM_API_KEY" in message["say"]


def test_an_answer_is_streamed_with_its_rounds(server: Server, vllm: ScriptedVLLM) -> None:
    vllm.words = (*WORDS, f"{HOSTILE}\n\nline")
    asked = RemotePrompt(server, JobQueue(), vllm.model, "Once", SamplingParams(max_tokens=9))
    *pieces, end = heard(asked.channel)
    written = "".join(f" {word}" for word in vllm.words).replace("\u202e", "⟨RLO⟩")
    assert "".join(piece["text"] for piece in pieces) == written
    assert end["rounds"].startswith("4 rounds with draft tokens, 8 of 14 draft tokens accepted")
    assert end["charts"]["rounds"]["columns"]
    assert not asked.goes_on


@pytest.mark.parametrize(("rounds", "draft_tokens"), [(10, 1), (1, 33), (1, 2**50)])
def test_implausibly_many_rounds_or_draft_tokens_are_not_drawn(
    server: Server, vllm: ScriptedVLLM, rounds: int, draft_tokens: int
) -> None:
    """A page that drew them would hang."""
    vllm.drafted, vllm.accepted = (draft_tokens,) * rounds, (0,) * rounds
    end = heard(RemotePrompt(server, JobQueue(), vllm.model, "Once", SamplingParams(max_tokens=9)).channel)[-1]
    assert end["rounds"] == remote.TOO_MANY
    assert "charts" not in end


def test_a_stopped_answer_ends_here_and_on_the_server(server: Server, vllm: ScriptedVLLM) -> None:
    vllm.endless, vllm.pause = True, 0.01
    prompts = Prompts(server, JobQueue(), lambda: (vllm.model,))
    asked = prompts.begin("somebody", "Once", SamplingParams(max_tokens=9))
    assert prompts.begin("somebody", "Again", SamplingParams(max_tokens=9)) is None
    until(lambda: vllm.asked)
    prompts.stop("somebody")
    end = heard(asked.channel)[-1]
    assert end["say"].startswith("Stopped.")
    assert end["rounds"] == CUT_SHORT, "nobody waits for them"
    until(lambda: vllm.left)
    vllm.endless = False
    assert heard(prompts.begin("somebody", "Again", SamplingParams(max_tokens=9)).channel)[-1]["rounds"]


def test_prompts_end_when_the_lab_shuts_down(server: Server, vllm: ScriptedVLLM) -> None:
    vllm.endless, vllm.pause, queue = True, 0.01, JobQueue()
    asked = RemotePrompt(server, queue, vllm.model, "Once", SamplingParams())
    until(lambda: vllm.asked)
    queue.close(0)
    assert "shutting down" in heard(asked.channel)[-1]["say"]
    until(lambda: vllm.left)


def test_too_many_prompts_and_a_silent_server_are_explained(
    server: Server, vllm: ScriptedVLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "AT_ONCE", 1)
    vllm.endless, vllm.pause = True, 0.01
    prompts = Prompts(server, JobQueue(), lambda: (vllm.model,))
    prompts.begin("one", "Once", SamplingParams())
    with pytest.raises(ServerError, match="under way"):
        prompts.begin("two", "Once", SamplingParams())
    prompts.leave("one")
    until(lambda: vllm.left)
    with pytest.raises(ServerError, match="names no model now"):
        Prompts(server, JobQueue(), lambda: ()).begin("two", "Once", SamplingParams())


def test_an_answer_that_breaks_off_is_explained(server: Server, vllm: ScriptedVLLM) -> None:
    vllm.wrong["stream"] = "error"
    *_, end = heard(RemotePrompt(server, JobQueue(), vllm.model, "Once", SamplingParams()).channel)
    assert end["problem"]
    assert "the engine died" in end["say"]
    assert end["rounds"] == CUT_SHORT
