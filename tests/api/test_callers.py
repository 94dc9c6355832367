"""Waiting callers are told so, hanging up ends a call, and concurrent callers get the same answers as alone."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import urllib.request
from urllib.parse import urlsplit

import pytest
from gradio_client import Client
from gradio_client.client import Job

from docs import measure_load as load
from tests.api.calls import FOREVER, PROMPT, get, hung_on, inside
from tests.coroutines import complete
from tests.waiting import until

pytestmark = pytest.mark.slow

SLOW = [f"kv_cache=false,block_size={size}" for size in range(1, 6)]
LONG = {"prompt": PROMPT, "settings": SLOW, "repeats": 9, "max_tokens": 256}  # half a minute
NOTICED = 10
"""Seconds within which hanging up is noticed, even on a busy machine: less than the call itself takes."""


def test_waiting_callers_are_reported_how_many_runs_are_before_theirs(server: str, client: Client) -> None:
    first = hung_on(server, "run", FOREVER)
    until(lambda: inside(server) == 1)
    jobs: list[Job] = []
    reported: list[list[str]] = [[], []]

    def heard(who: int, words: str) -> bool:
        for job, its in zip(jobs, reported, strict=False):
            its.extend(unit.desc for unit in job.status().progress_data or () if unit.desc not in its)
        return words in reported[who]

    for who, words in enumerate(("Waiting: 1 run is before yours.", "Waiting: 2 runs are before yours.")):
        jobs.append(client.submit(api_name="/run", prompt=PROMPT, max_tokens=5))
        until(lambda who=who, words=words: heard(who, words))
    last = hung_on(server, "run", {"prompt": PROMPT, "max_tokens": 5})
    assert b'data: "Waiting: 3 runs are before yours."\n' in itertools.takewhile(bool, iter(last.readline, None))
    first.close()
    assert b"event: complete" in last.read()
    assert [json.loads(job.result(60))["metrics"]["generated_tokens"] for job in jobs] == [5, 5]


@pytest.mark.parametrize("named", ["session_hash", "header"])
def test_hanging_up_ends_the_call_under_any_session_name(server: str, named: str) -> None:
    body = json.dumps(FOREVER).encode()
    if named == "session_hash":
        there = json.loads(get(f"{server}/gradio_api/info")[1])["named_endpoints"]["/run"]["parameters"]
        values = [FOREVER.get(it["parameter_name"], it.get("parameter_default")) for it in there]
        asked = json.dumps({"data": values, "session_hash": "mine", "event_id": "mine"}).encode()
        request = urllib.request.Request(f"{server}/gradio_api/call/run", asked, {"Content-Type": "application/json"})
    else:
        headers = {"Content-Type": "application/json", "X-Decode-Lab-Client": "me"}
        request = urllib.request.Request(f"{server}/gradio_api/call/v2/run", body, headers)
    with urllib.request.urlopen(request) as answer:
        event = json.load(answer)["event_id"]
    stream = urllib.request.urlopen(f"{server}/gradio_api/call/run/{event}")
    until(lambda: inside(server) == 1)
    stream.close()
    until(lambda: inside(server) == 0, NOTICED)


def test_hanging_up_ends_an_mcp_tool_call(server: str) -> None:
    pytest.importorskip("mcp")
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "compare", "arguments": LONG}}
    there = urlsplit(server)
    callers = [http.client.HTTPConnection(there.hostname, there.port) for _ in range(2)]
    for caller in callers:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        caller.request("POST", "/gradio_api/mcp/", json.dumps(asked), headers)
    until(lambda: inside(server) == 2)
    callers[0].sock.shutdown(socket.SHUT_RDWR)
    until(lambda: inside(server) == 1, NOTICED)  # the other caller's goes on
    callers[1].sock.shutdown(socket.SHUT_RDWR)
    until(lambda: inside(server) == 0, NOTICED)


def test_concurrent_callers_get_their_own_answers_and_leave_nothing_behind(server: str) -> None:
    async def come() -> tuple[load.Found, dict[str, float]]:
        there = load.Server(server)
        alone = await load.texts_alone(there, [ask for ask in load.ASKS if ask[2] == load.ASKS[0][2]])
        found = await load.crowd(there, alone, clients=12, seconds=1.5, seed=1)
        left = await there.quiet()
        await there.close()
        return found, left

    found, left = complete(come())
    assert found.errors == found.crossed == []
    assert found.answers + found.abandoned >= 12
    assert found.answers
    assert left == {"running": 0, "waiting": 0, "kv_usage": 0, "visits": 0}
